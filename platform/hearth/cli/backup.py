"""`hearth backup`, `restore` and `backup-key`: one encrypted file with everything that an instance cannot lose."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hearth import environment, paths
from hearth.backup import create as creation
from hearth.backup import encryption
from hearth.backup import restore as restoration
from hearth.backup.encryption import DecryptionKey, EncryptionKey
from hearth.backup.errors import BackupError
from hearth.checks import preflight
from hearth.instance.instance import Instance, from_environment
from hearth.supervisor import lock

FILE = click.Path(dir_okay=False, path_type=Path)
passphrase_option = click.option(
    "--passphrase-file", type=FILE, help="Read the passphrase from the first line of FILE, instead of the terminal."
)
identity_option = click.option("--identity", type=FILE, help="File with the private key of the backup.")


@click.command(short_help="Write an encrypted backup, while the instance runs.")
@click.argument("file", type=FILE)
@click.option(
    "--recipient", "recipients", multiple=True, help="Encrypt to this public key (age1…); repeat it for several."
)
@click.option("--verify", is_flag=True, help="Make no backup: check that FILE is one that can be restored.")
@passphrase_option
@identity_option
def backup(
    file: Path, recipients: tuple[str, ...], verify: bool, passphrase_file: Path | None, identity: Path | None
) -> None:
    """Write the database, the secrets, the usage log and the start options to FILE (mode 0600), encrypted.

    The instance may run: the database is read as of one moment, and the log holds what it does not have yet. With
    --recipient only the owner of the private key can read the file (`hearth backup-key` makes a pair), else everybody
    who knows the passphrase. Keep that key or passphrase elsewhere: without it the backup is useless.

    \b
      hearth backup-key /safe/hearth.key
      hearth backup /backups/monday.hearth --recipient age1…
      hearth backup --verify /backups/monday.hearth --identity /safe/hearth.key
    """
    instance = from_environment()
    if verify:
        found = restoration.verify(file, _decryption(identity, passphrase_file), _known_migrations(instance))
        click.echo(f"{file} can be restored.\n{restoration.as_text(found)}")
        return
    written = creation.create(instance, file, encryption_key(recipients, passphrase_file))
    click.echo(f"{file}: {file.stat().st_size:,} bytes")
    for name, size in written.items():
        click.echo(f"  {name}: {size:,} bytes")
    exports = environment.read().usage_export_dir or instance.data_dir / paths.USAGE_EXPORTS
    if files := sum(1 for _ in exports.glob("*.csv.gz")):
        click.echo(f"Not in it: {files:,} files of deleted days in {exports}. Copy them, too.")


@click.command("restore", short_help="Make a new instance of a backup.")
@click.argument("file", type=FILE)
@click.option("--replace", is_flag=True, help="Move the state in HEARTH_DATA_DIR into a folder replaced-… there first.")
@passphrase_option
@identity_option
def restore(file: Path, replace: bool, passphrase_file: Path | None, identity: Path | None) -> None:
    """Restore the backup in FILE into HEARTH_DATA_DIR, which holds no instance yet, and into DATABASE_URL if it is set.

    Everything in FILE is checked before anything is written. Afterwards start the instance with `hearth up`: it stores
    the usage that was still in the log, and counts budgets anew. Every API key, password and statement is as it was at
    the moment of the backup. Stored responses, sessions of the gateway's caches and idempotency keys are not in it.
    """
    instance = from_environment()
    preflight.check(instance)
    try:
        with lock.hold(instance.lock_path):
            found = restoration.restore(
                instance,
                file,
                _decryption(identity, passphrase_file),
                _known_migrations(instance),
                replace=replace,
            )
    except lock.AlreadyRunning as error:
        raise BackupError(f"An instance runs on {instance.data_dir}.", "`hearth down` stops it.") from error
    click.echo(f"Restored into {instance.data_dir}. `hearth up` starts it.\n{restoration.as_text(found)}")


@click.command("backup-key", short_help="Make a pair of keys for backups.")
@click.argument("file", type=FILE)
def backup_key(file: Path) -> None:
    """Write a new private key to FILE (mode 0600), and print its public key for `hearth backup --recipient`.

    Keep FILE away from this machine: it opens the backups.
    """
    click.echo(encryption.make_identity(file))


def encryption_key(recipients: tuple[str, ...], passphrase_file: Path | None) -> EncryptionKey:
    """Return what the options of a new backup name. Asks for a passphrase if they name nothing."""
    if recipients and passphrase_file:
        raise click.UsageError("Give --recipient or --passphrase-file, not both.")
    if recipients:
        return EncryptionKey(recipients=recipients)
    return EncryptionKey(passphrase=_passphrase(passphrase_file, confirm=True))


def _decryption(identity: Path | None, passphrase_file: Path | None) -> DecryptionKey:
    if identity is not None:
        return DecryptionKey(identities=_text(identity))
    return DecryptionKey(passphrase=lambda: _passphrase(passphrase_file, confirm=False))


def _passphrase(file: Path | None, *, confirm: bool) -> str:
    if file is not None:
        return _text(file).partition("\n")[0].removesuffix("\r")
    if not os.isatty(0):
        raise BackupError(
            "There is no terminal to ask for a passphrase.", "Give --passphrase-file, or --recipient for a public key."
        )
    found: str = click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BackupError(f"{file} cannot be read: {error}.", "") from error


def _known_migrations(instance: Instance) -> set[str]:
    """Return every migration of this version as ``app.name``."""
    os.environ.update(instance.environment())
    import django

    django.setup()
    from django.db.migrations.loader import MigrationLoader

    return {f"{app}.{name}" for app, name in MigrationLoader(None, ignore_no_migrations=True).disk_migrations or {}}
