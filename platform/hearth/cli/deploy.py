"""``hearth deploy``: serve a further model beside the one that `hearth up` deploys."""

from __future__ import annotations

import argparse
import shlex

from hearth.checks.preflight import PreflightError
from hearth.instance.instance import Instance
from hearth.provisioning import database

HELP = """\
Serve a further model: registers it as the platform's, visible to every tenant, and keeps replicas of it in the pool of
this node. The same name again changes what it serves and how many replicas there are; 0 stops it. It has the demo price
until you set one. An engine serves text or embeddings, never both: --task says which.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    parser.add_argument("name", metavar="NAME", help="what clients ask for; the deployment is named after it")
    parser.add_argument("--source", default="", help="a Hugging Face id or a folder (default: the tiny model)")
    parser.add_argument("--engine", choices=("vllm", "simulated"), default="vllm", help="default: vllm")
    parser.add_argument("--task", choices=("text", "embeddings"), default="text", help="default: text")
    parser.add_argument("--replicas", type=int, default=1, help="default: 1")
    parser.add_argument(
        "--engine-args",
        default="",
        help='the engine\'s own, quoted as for a shell: --engine-args="--tool-call-parser hermes"',
    )


def run(instance: Instance, parsed: argparse.Namespace) -> None:
    """Deploy what the arguments say and print under which name. Raises PreflightError when it cannot be done."""
    database.connect(instance)
    from django.db import Error as DatabaseError

    from hearth.provisioning.model_source import Wish, deploy  # its models need Django
    from tenants.errors import TenantError
    from workers.errors import WorkerError

    wish = Wish(
        source=parsed.source,
        engine=parsed.engine,
        name=parsed.name,
        task=parsed.task,
        engine_args=tuple(shlex.split(parsed.engine_args)),
    )
    try:
        made = deploy(wish, parsed.replicas)
    except DatabaseError as error:
        raise PreflightError("The database cannot be reached.", "`hearth up` starts the instance.") from error
    except (TenantError, WorkerError, OSError) as error:
        raise PreflightError(f"{parsed.name} cannot be deployed: {error!r}.", "") from error
    finally:
        database.disconnect()
    print(f"{parsed.name} is deployed as {made.name}, replicas: {made.min_replicas}.")
