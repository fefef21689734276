"""`hearth upgrade`: bring a running instance to this version, with requests going on."""

from __future__ import annotations

from pathlib import Path

import click

from hearth.backup import create as creation
from hearth.backup.errors import BackupError
from hearth.checks import preflight
from hearth.cli.backup import FILE, encryption_key, passphrase_option
from hearth.cli.instance import daemon
from hearth.instance import running
from hearth.instance.instance import from_environment
from hearth.instance.progress import Progress
from hearth.provisioning import database
from hearth.supervisor.process_group import StartFailed, outdated, supervisor_process


@click.command(short_help="Bring a running instance to this version.")
@click.option("--backup", "backup_file", type=FILE, help="Write a backup to this new FILE first.")
@click.option("--no-backup", is_flag=True, help="Write none: there is a recent one.")
@click.option("--recipient", "recipients", multiple=True, help="Encrypt the backup to this public key (age1…).")
@passphrase_option
@click.option("--finish", is_flag=True, help="Remove what only the version before needed.")
def upgrade(
    backup_file: Path | None, no_backup: bool, recipients: tuple[str, ...], passphrase_file: Path | None, finish: bool
) -> None:
    """Bring the instance that runs on HEARTH_DATA_DIR to the version of this command, while it serves.

    Makes a backup, migrates the database so that both versions can use it, and replaces the roles one by one: a new
    gateway serves before the old one finishes its requests. Engines go on. Afterwards, when every machine runs this
    version, `hearth upgrade --finish` removes what only the version before needed; until then you can go back.

    \b
      git pull && make install
      hearth upgrade --backup /backups/before.hearth --recipient age1…
      hearth upgrade --finish
    """
    instance, progress = from_environment(), Progress()
    preflight.check(instance)
    preflight.check_role_account(instance)
    preflight.check_engine_account(instance)
    if supervisor_process(instance) is None:
        problem = f"No instance runs on {instance.data_dir}, or it is in parts."
        raise preflight.PreflightError(problem, "`hearth up` and `hearth bootstrap` migrate; then start the roles.")
    if running.as_started(instance) != instance:
        problem = "The instance was started with other settings than this command has: ports, node or processes."
        raise preflight.PreflightError(problem, f"{instance.data_dir / running.FILE_NAME} has them; set the same.")
    if finish:
        old = outdated(instance)
        if old:
            problem = f"{', '.join(old)} did not start with this version and these settings."
            raise preflight.PreflightError(problem, "Run `hearth upgrade` first.")
        database.migrate(instance, contract=True)
        progress.log("The database has no more than this version needs")
        return
    if (backup_file is None) is not no_backup:
        raise click.UsageError("Give --backup FILE or --no-backup.")
    if backup_file is not None:
        creation.create(instance, backup_file, encryption_key(recipients, passphrase_file))
        progress.log(f"Backup written to {backup_file}")
    database.migrate(instance)
    progress.log("Database migrated; the version before can still use it")
    if daemon.restart(instance) is None:
        raise StartFailed(f"The new supervisor gave up. Its log: {instance.log_path('supervisor')}")
    old = outdated(instance)
    if old:
        raise BackupError(f"Still of the version before: {', '.join(old)}.", "Their logs say why; run it again.")
    progress.log("Every role runs this version. When all machines do: hearth upgrade --finish")
