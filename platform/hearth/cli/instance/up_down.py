"""`hearth up`, `down`, `status` and `manage`: start, stop and inspect a whole instance."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from hearth import environment
from hearth.checks import preflight
from hearth.cli.instance import daemon
from hearth.cli.instance.start_options import START_OPTIONS, start_options, with_options
from hearth.cli.output import status
from hearth.instance import roles
from hearth.instance.instance import Instance, from_environment
from hearth.instance.progress import Progress
from hearth.supervisor import lock, up_file
from hearth.supervisor.up import Supervisor

#: Django commands that change the schema or run as its owner.
OWNER_COMMANDS = frozenset({"migrate", "ensure_partitions", "grant_role", "dbshell", "flush", "sqlflush"})


@click.command(short_help="Start an instance.")
@click.option("--detach", is_flag=True, help="Return once it is ready, and leave it running.")
@click.option("--detached", is_flag=True, hidden=True)
@click.option("--rolling", is_flag=True, hidden=True)
@with_options(START_OPTIONS)
def up(detach: bool, detached: bool, rolling: bool, **given: Any) -> None:
    """Start an instance and keep it running.

    Starts embedded PostgreSQL and Redis (unless DATABASE_URL and REDIS_URL name servers), migrates the database,
    installs the engine if it is missing (4 GB and 2 minutes on a CPU), and runs one process per role and the engine
    replicas. At the end it prints an address, a login and a curl command to paste. While the instance runs, a second
    `hearth up` prints the same summary. Ctrl-C stops everything in order, a second Ctrl-C at once.

    An option that is left out keeps its value of the last start; the defaults of a first start are in [brackets]. So
    `--model hearth-tiny --engine auto` returns from another model or from simulated engines. Replicas and placeholders
    can be changed in the portal too.
    """
    os.umask(roles.UMASK)
    instance = from_environment()
    options = start_options(given)
    if not detached:
        for each in environment.unknown(os.environ):
            click.echo(f"hearth: warning: {each.problem} {each.remedy}", err=True)
    try:
        if not detach:
            Supervisor(instance, options, Progress(), rolling=rolling).run(show_summary=not detached)
            return
        preflight.check(instance)
        if lock.is_held(instance.lock_path):
            raise lock.AlreadyRunning
    except lock.AlreadyRunning:
        _print_running(instance)
        return
    ready = daemon.start(instance, options)
    if ready is None:
        sys.exit(1)
    print(up_file.text(ready) + f"\n`hearth down` stops it; its log: {instance.log_path('supervisor')}\n")


def _print_running(instance: Instance) -> None:
    """Print the summary of the instance that runs. Raises PreflightError unless everything in it is well."""
    ready = up_file.read(instance.up_path)
    if ready is None:
        problem = f"An instance on {instance.data_dir} is already starting or stopping."
        raise preflight.PreflightError(problem, "Wait, then try again.")
    print(f"Already running on {instance.data_dir}, process {ready.pid}.")
    print(up_file.text(ready))
    state = status.read(instance).state
    if state != "up":
        raise preflight.PreflightError(f"It is {state}: `hearth status` shows what is not well.", "")


@click.command(short_help="Stop an instance.")
@click.option(
    "--fleet",
    is_flag=True,
    help="Stop the engines of all other machines too. They start again with the next control role, on any machine.",
)
def down(fleet: bool) -> None:
    """Stop the instance on HEARTH_DATA_DIR, however it was started.

    Running requests finish (at most 30 s), engines stop, usage is drained. It also ends what a killed instance left
    behind. The data stays. Only this machine stops: engines of other machines go on, and the scheduler of another
    machine starts replacements there. The next `hearth up` here takes part again.
    """
    instance = from_environment()
    print("Stopped." if daemon.stop(instance, fleet=fleet) else f"Nothing runs on {instance.data_dir}.")


@click.command("status", short_help="Show what runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, without secrets.")
def status_command(as_json: bool) -> None:
    """Show what runs, with uptimes in seconds.

    The exit status is 0 only when every role runs, the embedded servers respond, and as many replicas are ready as the
    model of the last start needs: none while it is archived.
    """
    found = status.read(from_environment())
    print(json.dumps(status.as_json(found), indent=2) if as_json else status.text(found))
    sys.exit(0 if found.state == "up" else 1)


@click.command(
    short_help="Run a Django management command.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def manage(arguments: tuple[str, ...]) -> None:
    """Run a Django management command on the instance; `migrate` runs as the owner of the database."""
    instance = from_environment()
    variables = instance.environment()
    if arguments and arguments[0] in OWNER_COMMANDS:
        variables["DATABASE_URL"] = instance.owner_url()
    os.execve(sys.executable, [sys.executable, "-m", "django", *arguments], variables)
