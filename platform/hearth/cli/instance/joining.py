"""`hearth node token`, `tokens`, `revoke`, `join` and `remove`: how machines join a cluster, and leave it for good."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING
from uuid import UUID

import click

from hearth import environment
from hearth.checks import preflight
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table
from hearth.instance import roles
from hearth.instance.instance import Instance, from_environment
from hearth.provisioning import node_join

if TYPE_CHECKING:
    from workers.models import NodeToken  # needs Django

ANYWHERE = ("0.0.0.0", "::")
MINUTES = click.IntRange(1, 24 * 60)


@click.command(short_help="Print the command with which a new machine joins a pool.")
@click.option("--pool", required=True, help="The pool that the machine joins.")
@click.option("--minutes", type=MINUTES, default=15, show_default=True, help="For how long the token is valid.")
@click.option("--node", "name", default="", help="The only name to join with; a node that exists is replaced.")
@click.option(
    "--portal",
    default="",
    metavar="URL",
    help="Address at which the new machine reaches the portal. By default this machine's HEARTH_NODE_ADDRESS, or "
    "HEARTH_HOST, with the portal's port.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def token(pool: str, minutes: int, name: str, portal: str, as_json: bool) -> None:
    """Make a token, and print the command to enter on the new machine.

    It is valid once, for one pool, and for minutes; `hearth node revoke` ends it. Anybody who has it can join: send it
    as you would send a password. The database keeps nothing of its secret.
    """
    instance = from_environment()
    with on_database("No token was made"):
        from tenants import audit
        from workers.fleet.joining import node_tokens

        issued = node_tokens.issue(
            audit.shell("hearth node token"),
            pool=pool,
            portal=portal or _portal(instance),
            minutes=minutes,
            node=name,
        )
    if as_json:
        document = {"id": str(issued.token.id), "secret": issued.text, "command": issued.command}
        click.echo(json.dumps(document | {"expires_at": issued.token.expires_at.isoformat()}, indent=2))
        return
    click.echo(issued.command)
    click.echo(
        f"Token {issued.token.id}, valid once until {issued.token.expires_at:%Y-%m-%d %H:%M} UTC for pool {pool}.",
        err=True,
    )


@click.command(short_help="List the tokens with which machines join.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tokens(as_json: bool) -> None:
    """List the newest 50 tokens, used and ended ones too, without their secrets."""
    with on_database("The tokens cannot be read"):
        from workers.fleet.joining import node_tokens

        rows = [(each, node_tokens.state_of(each)) for each in node_tokens.newest()]
        shown = [_row(each, state) for each, state in rows]
    if as_json:
        names = ("id", "pool", "node", "state", "expires_at", "created_by")
        click.echo(json.dumps([dict(zip(names, row, strict=True)) for row in shown], indent=2))
        return
    click.echo(table(("TOKEN", "POOL", "NODE", "STATE", "EXPIRES", "MADE BY"), shown))


@click.command(short_help="End a token before a machine has used it.")
@click.argument("token", type=click.UUID)
def revoke(token: UUID) -> None:
    """End a token. A node that joined with it stays: `hearth node remove` ends that."""
    with on_database("Nothing was revoked"):
        from tenants import audit
        from workers.fleet.joining import node_tokens

        found = node_tokens.revoke(audit.shell("hearth node revoke"), token)
        state = node_tokens.state_of(found)
    click.echo(f"Token {token}: {state}.")


@click.command(short_help="Make this machine a node, with a token.")
@click.argument("token")
def join(token: str) -> None:
    """Make this machine a node of the cluster that issued the TOKEN; `hearth node` then runs it.

    HEARTH_NODE names the node, by default the host name; HEARTH_NODE_ADDRESS is where gateways reach it, by default the
    address from which it reaches the portal. The cluster's engine key and the addresses of its servers are stored in
    HEARTH_DATA_DIR, readable for you alone. DATABASE_URL and REDIS_URL, if they are set, are kept instead of those.
    """
    os.umask(roles.UMASK)
    instance = from_environment()
    preflight.check_folders(instance)
    joined = node_join.join(instance.data_dir, token)
    click.echo(f"This machine is node {joined.node} of pool {joined.pool}. Its settings are in {joined.file}.")
    click.echo("Start it: hearth node")


@click.command(short_help="Remove a node that does not come back.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(name: str, yes: bool) -> None:
    """Remove the node NAME for good, after the loss or theft of its machine.

    Its certificate is not renewed, its database role loses every right at once and is dropped, its replicas and
    placeholders count as ended. Its history stays. The machine may join again with a token for that name.
    """
    if not yes:
        click.confirm(f"Remove node {name} for good?", abort=True)
    with on_database("Nothing was removed"):
        from tenants import audit
        from workers.fleet.joining import node_joining

        removed = node_joining.remove(audit.shell("hearth node remove"), name)
    click.echo(f"Node {removed.node} is removed; {removed.replicas} of its replicas had not ended.")
    if removed.statement:
        click.echo(f"Its database role has no rights any more. To drop it, as a superuser: {removed.statement}")


def _portal(instance: Instance) -> str:
    """Return the portal's address as another machine most likely reaches it."""
    address = environment.read().node_address
    host = address if instance.host in {*ANYWHERE, "127.0.0.1"} else instance.host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{instance.portal_port}"


def _row(each: NodeToken, state: str) -> tuple[str, ...]:
    expires = f"{each.expires_at:%Y-%m-%d %H:%M}"
    return (str(each.id), each.pool.name, each.node_name or "any", state, expires, each.created_by)
