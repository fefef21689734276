"""`hearth secrets rotate`: new secrets beside the earlier ones, taken up by one role after another."""

from __future__ import annotations

import click
import psycopg

from hearth import secrets
from hearth.checks.preflight import PreflightError
from hearth.cli.instance import daemon
from hearth.instance import running
from hearth.instance.instance import Instance, from_environment
from hearth.secrets import Secrets
from hearth.supervisor import lock
from hearth.supervisor.process_group import StartFailed, outdated, supervisor_process

LOCK = "rotation.lock"
PEPPERS_IN_USE = """
    SELECT pepper_version FROM tenants_apikey UNION SELECT pepper_version FROM tenants_operatortoken
"""


@click.command("rotate", short_help="Replace secrets, while the instance runs.")
@click.option(
    "--caches",
    is_flag=True,
    help="Also the keys of the caches: every stored response and Idempotency-Key is then unknown.",
)
@click.option("--finish", is_flag=True, help="Drop the earlier versions that nothing needs any more. Signs users out.")
def rotate(caches: bool, finish: bool) -> None:
    """Add new versions of the key pepper and of Django's key to secrets.json, and make them current.

    Earlier versions stay valid: every API key works, and nobody is signed out. A running instance takes the new ones up
    role by role, while gateways serve. `--finish`, later, drops the earlier Django keys and the peppers of which no
    stored key is left. Make a backup afterwards.

    Not rotated: the engine key; the passwords of the embedded database, which only this machine can reach (the embedded
    Redis has none); and those of your own servers, which are in their addresses: change them there, then restart.
    """
    instance = from_environment()
    if caches and finish:
        raise click.UsageError("Give --caches or --finish, not both.")
    secrets.require(instance.data_dir)
    runs = supervisor_process(instance) is not None
    if runs and running.as_started(instance) != instance:
        problem = "The instance was started with other settings than this command has: ports, node or processes."
        raise PreflightError(problem, f"{instance.data_dir / running.FILE_NAME} has them; set the same.")
    if runs and outdated(instance):
        problem = "Some roles run with another version, or with secrets or settings of before."
        raise PreflightError(problem, "Run `hearth upgrade` first, so that only secrets change now.")
    try:
        with lock.hold(instance.data_dir / LOCK):
            found = secrets.load(instance.data_dir)
            new = _finished(instance, found) if finish else secrets.rotated(found, caches=caches)
            secrets.replace_file(instance.data_dir, new)
    except lock.AlreadyRunning as error:
        raise PreflightError(
            "Another rotation writes the secrets now.", "Wait, then look before you repeat it."
        ) from error
    click.echo(f"{secrets.path_in(instance.data_dir)} has pepper {new.key_pepper.current}, and keeps {_kept(new)}.")
    if not runs:
        _declare(instance)
        click.echo(
            "No supervisor runs here: each role uses the new secrets from its next start. Restart gateways first."
        )
        return
    if daemon.restart(instance) is None:
        raise StartFailed(f"The new supervisor gave up. Its log: {instance.log_path('supervisor')}")
    old = outdated(instance)
    if old:
        raise StartFailed(f"Still with the secrets from before: {', '.join(old)}. Their logs say why.")
    click.echo("Every role uses the new secrets.")


def _declare(instance: Instance) -> None:
    """Tell a database of its own which secrets its cluster has now; the embedded one is told by `hearth up`."""
    if not instance.database_url:
        return
    from hearth.provisioning import database  # Django, once the secrets are written

    try:
        database.declare_secrets(instance)
    except database.Unreachable as error:
        problem = f"The secrets are written, but the database does not know of them: {error}."
        raise PreflightError(problem, "Run `hearth bootstrap` before a role starts again.") from error


def _finished(instance: Instance, found: Secrets) -> Secrets:
    try:
        with psycopg.connect(instance.app_url(), connect_timeout=10) as connection:
            used = {row[0] for row in connection.execute(PEPPERS_IN_USE)}
    except psycopg.Error as error:
        problem = f"The database does not say which peppers its keys need: {str(error).strip()}."
        raise PreflightError(problem, "Start the instance, then try again.") from error
    return secrets.without_earlier(found, peppers_in_use=used)


def _kept(found: Secrets) -> str:
    peppers = sorted(found.key_pepper.versions.keys() - {found.key_pepper.current})
    kept = [f"pepper {number}" for number in peppers]
    kept += (
        [f"{len(found.django_secret_key_fallbacks)} earlier Django keys"] if found.django_secret_key_fallbacks else []
    )
    return ", ".join(kept) or "no earlier version"
