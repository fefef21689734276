"""`hearth backup`: write the database, the secrets, the usage log and the start options to one encrypted file."""

from __future__ import annotations

import os
import secrets as random
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import IO

from hearth import paths, secrets
from hearth.backup import database_dump, encryption, streams, usage_log
from hearth.backup.archive import ArchiveWriter
from hearth.backup.encryption import EncryptionKey
from hearth.backup.errors import BackupError
from hearth.instance import start_options
from hearth.instance.instance import Instance
from hearth.supervisor import lock

DATABASE = "database"
SECRETS = secrets.FILE_NAME
WAL = "wal"
#: Files of the data directory that a restored instance needs besides: the options of the last start, the demo's keys,
#: and that its node is cordoned only because it was stopped.
FILES = (start_options.FILE_NAME, "demo-keys.json", paths.LEFT_MARK)


def create(instance: Instance, destination: Path, key: EncryptionKey) -> dict[str, int]:
    """Write a backup of the instance, running or not, to a new file; return the bytes of each part.

    The file appears complete or not at all. Raises BackupError and SecretsError.
    """
    if destination.exists():
        raise BackupError(f"{destination} exists.", "Name a file that does not exist yet.")
    secrets.require(instance.data_dir)
    partial = destination.with_name(f".{destination.name}.{random.token_hex(4)}.part")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, encryption.PRIVATE)
    except OSError as error:
        raise BackupError(
            f"{destination.parent} cannot be written: {error.strerror}.", "Name another folder."
        ) from error
    try:
        with _database(instance) as url, os.fdopen(descriptor, "wb") as file:
            written: dict[str, int] = {}
            streams.connect(
                lambda archive: written.update(_write(instance, url, archive)),
                lambda archive: encryption.encrypt(archive, file, key),
            )
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, destination)
    except FileExistsError:
        raise BackupError(f"{destination} was made meanwhile.", "Name another file.") from None
    except OSError as error:
        raise BackupError(f"The backup cannot be written: {error}.", "Nothing is left of it.") from error
    finally:
        partial.unlink()
    return written


def _write(instance: Instance, url: str, destination: IO[bytes]) -> dict[str, int]:
    archive = ArchiveWriter(destination)
    with usage_log.held(instance.data_dir / WAL) as log, database_dump.snapshot(url) as moment:
        log.hold()
        archive.manifest(
            {
                "format": encryption.FORMAT,
                "hearth": version("hearth"),
                "taken_at": moment.taken_at,
                "node": instance.node,
                "postgresql": moment.server_version,
                "migrations": moment.migrations,
            }
        )
        archive.part(SECRETS, BytesIO(secrets.path_in(instance.data_dir).read_bytes()))
        for name in FILES:
            path = instance.data_dir / name
            if path.is_file():
                archive.part(f"files/{name}", BytesIO(path.read_bytes()))
        for name, file, size in log.sized():
            archive.part(f"{WAL}/{name}", file, limit=size)
        with database_dump.dump(url, moment) as dumped:
            archive.part(DATABASE, dumped)
    return archive.finish()


@contextmanager
def _database(instance: Instance) -> Iterator[str]:
    """Yield the address of the database as its owner; start the embedded one for the block if it does not run."""
    server = instance.postgres(secrets.load(instance.data_dir))
    if server is None or server.process() is not None:
        yield instance.owner_url()
        return
    with lock.hold(instance.lock_path):
        server.start()
        try:
            yield instance.owner_url()
        finally:
            server.stop()
