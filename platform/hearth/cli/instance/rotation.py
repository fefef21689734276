"""`hearth secrets rotate`: new secrets beside the earlier ones, taken up by one role after another."""

from __future__ import annotations

import time

import click
import psycopg

from hearth import secrets
from hearth.checks.preflight import PreflightError
from hearth.cli.instance import daemon, secrets_in_use
from hearth.cli.instance.secrets_in_use import EngineKeyUse
from hearth.instance import running
from hearth.instance.instance import Instance, from_environment
from hearth.secrets import Secrets
from hearth.supervisor import lock
from hearth.supervisor.process_group import StartFailed, outdated, supervisor_process

LOCK = "rotation.lock"
#: Longest wait for the gateways of before: their last requests, and their last report.
GATEWAYS_SECONDS = 60.0
POLL_SECONDS = 0.5


@click.command("rotate", short_help="Replace secrets, while the instance runs.")
@click.option(
    "--caches",
    is_flag=True,
    help="Also the keys of the caches: every stored response and Idempotency-Key is then unknown.",
)
@click.option("--finish", is_flag=True, help="Drop the earlier versions that nothing needs any more. Signs users out.")
def rotate(caches: bool, finish: bool) -> None:
    """Add new versions of the key pepper, Django's key and the engine key to secrets.json, and make them current.

    Earlier versions stay valid: every API key works, nobody is signed out, and engines serve on with the key that they
    were started with. A running instance takes the new ones up role by role, while gateways serve. `--finish`, later,
    drops the earlier Django keys, the peppers of which no stored key is left, and the engine keys that no engine, agent
    or gateway needs; it names what still needs one. Make a backup afterwards.

    Machines with a gateway, then nodes: import the secrets there (`hearth secrets import --help`) before `--finish`.

    The authority of certificates is replaced too: nodes get certificates of the new one by themselves, and `--finish`
    drops the earlier one once no node and no gateway needs it.

    Not rotated: the passwords of the embedded database, which only this machine can reach (the embedded Redis has
    none), and those of your own servers, which are in their addresses: change them there, then restart.
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
    click.echo(
        f"{secrets.path_in(instance.data_dir)} has pepper {new.key_pepper.current} and engine key "
        f"{secrets.fingerprint(new.engine_key)}, and keeps {_kept(new)}."
    )
    if not runs:
        _declare(instance)
        click.echo(
            "No supervisor runs here: each role uses the new secrets from its next start. Restart gateways first."
        )
        if instance.database_url:
            _report_uses(instance, new)
        return
    if daemon.restart(instance) is None:
        raise StartFailed(f"The new supervisor gave up. Its log: {instance.log_path('supervisor')}")
    old = outdated(instance)
    if old:
        raise StartFailed(f"Still with the secrets from before: {', '.join(old)}. Their logs say why.")
    click.echo("Every role uses the new secrets.")
    _wait_for_gateways(instance, new)
    _report_uses(instance, new)


def _declare(instance: Instance) -> None:
    """Store the cluster's present secrets in an external database; `hearth up` does it for the embedded one."""
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
            new = secrets.without_earlier(
                found,
                peppers_in_use=secrets_in_use.peppers(connection),
                engine_keys_in_use={use.fingerprint for use in secrets_in_use.engine_keys(connection, found)},
                authorities_in_use=secrets_in_use.authorities(connection),
            )
            secrets_in_use.stop_lost(connection, found, found.engine_keys.keys() - new.engine_keys.keys())
    except psycopg.Error as error:
        problem = f"The database does not say which earlier secrets are in use: {str(error).strip()}."
        raise PreflightError(problem, "Start the instance, then try again.") from error
    return new


def _wait_for_gateways(instance: Instance, new: Secrets) -> None:
    """Wait until this node's earlier gateways no longer count: until then engines start with the key they have."""
    newest = next(iter(new.engine_keys))
    give_up_at = time.monotonic() + GATEWAYS_SECONDS
    while time.monotonic() < give_up_at:
        behind = [use for use in _engine_key_uses(instance, new) if use.kind == "gateway" and use.fingerprint != newest]
        if not any(use.name.endswith(f"@{instance.node}") for use in behind):
            return
        time.sleep(POLL_SECONDS)


def _report_uses(instance: Instance, new: Secrets) -> None:
    lines = list(secrets_in_use.uses_of_earlier(new, _engine_key_uses(instance, new)))
    for line in lines:
        click.echo(line)
    if lines:
        click.echo("When nothing of that is left: hearth secrets rotate --finish")
    elif new.engine_key_fallbacks:
        click.echo("Nothing needs an earlier engine key; to drop it: hearth secrets rotate --finish")


def _engine_key_uses(instance: Instance, found: Secrets) -> list[EngineKeyUse]:
    try:
        with psycopg.connect(instance.app_url(), connect_timeout=10) as connection:
            return secrets_in_use.engine_keys(connection, found)
    except psycopg.Error as error:
        problem = (
            f"The secrets are written, but the database does not say what uses earlier ones: {str(error).strip()}."
        )
        raise PreflightError(problem, "`hearth secrets rotate --finish` says it too.") from error


def _kept(found: Secrets) -> str:
    peppers = sorted(found.key_pepper.versions.keys() - {found.key_pepper.current})
    kept = [f"pepper {number}" for number in peppers]
    kept += (
        [f"{len(found.django_secret_key_fallbacks)} earlier Django keys"] if found.django_secret_key_fallbacks else []
    )
    kept += [f"engine key {secrets.fingerprint(key)}" for key in found.engine_key_fallbacks]
    kept += [f"authority {each.fingerprint}" for each in found.authorities[1:]]
    return ", ".join(kept) or "no earlier version"
