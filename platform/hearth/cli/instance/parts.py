"""`hearth role`, `node`, `bootstrap` and `secrets`: an instance in parts, on several machines or in containers."""

from __future__ import annotations

import os
from typing import Any, get_args

import click

from hearth import secrets as instance_secrets
from hearth.checks import preflight
from hearth.checks.preflight import PreflightError
from hearth.cli import healthcheck
from hearth.cli.instance.start_options import (
    POOL_OPTIONS,
    START_OPTIONS,
    pool_options,
    start_options,
    with_options,
)
from hearth.instance import roles
from hearth.instance.instance import from_environment
from hearth.instance.progress import Progress
from hearth.instance.start_options import StartOptions
from hearth.provisioning import database, secrets_transfer
from hearth.supervisor import lock
from hearth.supervisor import node as node_host
from hearth.supervisor.node import NodeHost, NodeOptions


@click.command(short_help="Run one role in the foreground.")
@click.argument("name", type=click.Choice(sorted(roles.BY_NAME)))
@click.option("--alive", is_flag=True, help="Start nothing: check whether the running process of the role is alive.")
def role(name: str, alive: bool) -> None:
    """Run one role, for a container, a systemd unit or a debugger. This process becomes the role's.

    Needs the servers of DATABASE_URL and REDIS_URL, or the embedded ones of a running instance, and the secrets in
    HEARTH_DATA_DIR. Refuses to start when these do not belong together.
    """
    instance = from_environment()
    if alive:
        problem = healthcheck.problem(instance, name)
        if problem is not None:
            raise PreflightError(problem, "")
        return
    os.umask(roles.UMASK)
    account = node_host.check_role(instance, roles.BY_NAME[name])
    command, variables = roles.start_of(roles.BY_NAME[name], instance, account)
    os.execve(command[0], command, variables)


@click.group(invoke_without_command=True, short_help="Run the engines of a further machine, or let it join.")
@click.option(
    "--head",
    is_flag=True,
    help="Run every role here too: gateway, portal, control, inference, background and beat. Needs all secrets "
    "(`hearth secrets export --all -`), and DATABASE_URL and REDIS_URL with the first machine's rights.",
)
@click.option("--agent-only", is_flag=True, help="Run no drain: another process drains the usage of HEARTH_DATA_DIR.")
@click.option(
    "--engine",
    type=click.Choice(get_args(database.Engine)),
    default="vllm",
    help="Engine that the cluster runs; vllm is installed if it is missing. [vllm]",
)
@with_options(POOL_OPTIONS)
@click.pass_context
def node(context: click.Context, /, head: bool, agent_only: bool, engine: database.Engine, **given: Any) -> None:
    """Run a node: an agent, the engines that the cluster places here, and the drain of their usage.

    With --head run every role: this machine then serves as the first one does, and goes on without it.

    Stays in the foreground. Ctrl-C or SIGTERM lets the engines finish, moves their replicas to other nodes and stops.
    When it is killed, its engines go on, and the next start adopts them.

    `hearth node join TOKEN`, once, gives this machine what it needs: DATABASE_URL, REDIS_URL and the engine key.
    Without it set these by hand (docs/deployment.md); and HEARTH_NODE (its name, by default the host name),
    HEARTH_NODE_ADDRESS (where gateways reach it) and HEARTH_SLOTS.
    """
    if context.invoked_subcommand is not None:
        return
    os.umask(roles.UMASK)
    instance = from_environment()
    if head and agent_only:
        raise PreflightError("--head and --agent-only exclude each other: a head drains what its gateway writes.", "")
    options = NodeOptions(head=head, with_drain=not agent_only, engine=engine, new_node=pool_options(given))
    try:
        NodeHost(instance, options, Progress()).run()
    except lock.AlreadyRunning as error:
        problem = f"An instance or a node runs on {instance.data_dir} already."
        raise PreflightError(problem, "`hearth down` stops it.") from error


@click.command(short_help="Migrate the database and fill it, once.")
@click.option(
    "--no-model",
    is_flag=True,
    help="Deploy no model and register no node: `hearth apply` deploys, and nodes register themselves.",
)
@with_options(START_OPTIONS)
def bootstrap(*, no_model: bool, **given: Any) -> None:
    """Do what `hearth up` does before it starts anything, for instances in parts, before their roles.

    Creates the secrets, migrates the database of DATABASE_OWNER_URL, and creates the operator, the model and its
    deployment; with HEARTH_DEMO=1 also demo tenants. Starts nothing. Running it again changes nothing, unless options
    differ: an option that is left out keeps its value of the last time; the defaults of the first time are in
    [brackets].
    """
    if no_model and StartOptions() != start_options(given):
        raise click.UsageError("--no-model deploys nothing: leave out the options of the model and of its pool.")
    instance, options, progress = from_environment(), start_options(given), Progress()
    if not instance.database_url:
        raise PreflightError(
            "There is no DATABASE_URL to bootstrap.", "`hearth up` sets the embedded database up by itself."
        )
    preflight.check(instance)
    instance_secrets.load_or_create(instance.data_dir)
    database.migrate(instance)
    progress.log("Database migrated")
    database.connect(instance)
    from hearth.provisioning import demo_tenants  # its models need Django

    if no_model:
        first = database.bootstrap_without_model(instance)
    else:
        wanted = options.engine or database.remembered_engine(instance)
        first = database.bootstrap(instance, options, "simulated" if wanted == "simulated" else "vllm")
    database.disconnect()
    # no secret: in a container this goes to a log
    progress.log(f"Serves {first.model_name or 'no model yet'}; sign in as {first.admin_username}")
    progress.log(f"The password is admin_password in {instance_secrets.path_in(instance.data_dir)}")
    if first.tenants:
        progress.log(f"Keys of the demo tenants are in {instance.data_dir / demo_tenants.FILE_NAME}")
    else:
        progress.log("There are no demo tenants: make a tenant and its keys in the portal, or set HEARTH_DEMO=1")


@click.group(short_help="Copy secrets to another machine of the cluster, or rotate them.")
def secrets() -> None:
    """Copy secrets to another machine of the cluster, or rotate them.

    \b
    Over the network, without a file on disk:
      hearth secrets export - | ssh OTHER hearth secrets import -
    """


@secrets.command("create", short_help="Make the secrets of a new instance.")
def create_secrets() -> None:
    """Make new secrets in HEARTH_DATA_DIR, where there are none, and start nothing.

    For an instance whose secrets are kept somewhere else, as in Kubernetes, before anything of it runs. `export`
    prints them.
    """
    instance = from_environment()
    os.umask(roles.UMASK)
    preflight.check_folders(instance)
    path = instance_secrets.path_in(instance.data_dir)
    if path.exists():
        raise PreflightError(
            f"{path} exists already.", "Nothing was changed; name another HEARTH_DATA_DIR for new ones."
        )
    instance_secrets.load_or_create(instance.data_dir)
    click.echo(f"New secrets are in {path}.", err=True)


@secrets.command("export", short_help="Write secrets of HEARTH_DATA_DIR to a file.")
@click.argument("file")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Export everything, for a backup or a machine with a gateway or a portal. By default only the engine key, "
    "with earlier ones in use, which is all that `hearth node` needs.",
)
def export_secrets(file: str, everything: bool) -> None:
    """Write secrets of HEARTH_DATA_DIR to a new FILE of mode 0600, or to standard output (-)."""
    secrets_transfer.export(from_environment().data_dir, file, everything=everything)


@secrets.command("import", short_help="Make exported secrets those of HEARTH_DATA_DIR.")
@click.argument("file")
def import_secrets(file: str) -> None:
    """Make the secrets in FILE, or on standard input (-), those of HEARTH_DATA_DIR.

    It must have none yet, or those from which the ones in FILE were rotated. What runs there uses them from its next
    start.
    """
    instance = from_environment()
    preflight.check_folders(instance)
    secrets_transfer.take(instance.data_dir, file)
    click.echo(f"The secrets are in {instance.data_dir}.", err=True)
