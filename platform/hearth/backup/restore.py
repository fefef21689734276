"""`hearth restore`: verify a backup, then make a new instance of it.

Everything is read and checked before anything is written. The secrets come last: without them nothing starts on a
half-restored data directory.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hearth import secrets
from hearth.backup import database_dump, encryption, streams
from hearth.backup.archive import ArchiveReader, Piece
from hearth.backup.create import DATABASE, FILES, SECRETS, WAL
from hearth.backup.encryption import DecryptionKey
from hearth.backup.errors import BackupError, BackupUnreadable, TargetNotEmpty
from hearth.embedded.postgres import PostgresServer
from hearth.instance.instance import Instance
from hearth.secrets import Secrets

#: What belongs to an instance in its data directory, and is moved away before another one is restored there.
STATE = (SECRETS, "postgres", "redis", WAL, "engines", *FILES)
_FILE_NAME = re.compile(r"[a-z0-9][a-zA-Z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A backup that can be restored."""

    manifest: dict[str, Any]
    #: The bytes of each part.
    parts: dict[str, int]
    found: Secrets


def verify(path: Path, key: DecryptionKey, known_migrations: set[str]) -> Verified:
    """Read the whole backup and check that it can be restored. Raises BackupError."""
    with _open(path) as file:
        return _verify(encryption.opened(file, key), known_migrations)


def restore(
    instance: Instance, path: Path, key: DecryptionKey, known_migrations: set[str], *, replace: bool
) -> Verified:
    """Verify the backup, then restore it into the empty data directory and database of ``instance``.

    With ``replace``, the state in the data directory is first moved into a folder ``replaced-…`` there. The caller
    holds the instance's lock, and its folders exist. Leaves nothing behind on an error. Raises BackupError.
    """
    with _open(path) as file:
        write_to = encryption.opened(file, key)
        verified = _verify(write_to, known_migrations)
        present = [name for name in STATE if _is_filled(instance.data_dir / name)]
        if present and not replace:
            raise TargetNotEmpty(
                f"{instance.data_dir} holds an instance already ({', '.join(present)}).",
                "Set HEARTH_DATA_DIR to a new folder, or move what is there aside with --replace.",
            )
        if instance.database_url:
            database_dump.require_empty(instance.owner_url())
        if present:
            _move_aside(instance.data_dir, present)
        _restore(instance, write_to, verified)
    return verified


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}.", "") from error


def _verify(write_to: Callable[[IO[bytes]], None], known: set[str]) -> Verified:
    documents: dict[str, bytearray] = {}

    def read(source: IO[bytes]) -> Verified:
        archive = ArchiveReader(source)
        _require_known(archive.manifest, known)
        pieces = archive.pieces()
        database_dump.check(_database_pieces(pieces, lambda piece: _collect(piece, documents)))
        for piece in pieces:
            _collect(piece, documents)
        if archive.parts.get(DATABASE) is None or SECRETS not in documents:
            raise BackupUnreadable("The backup is damaged: a part is missing.", "Use another copy of it.")
        found = secrets.from_text(documents[SECRETS].decode(errors="replace"), Path(SECRETS))
        return Verified(manifest=archive.manifest, parts=archive.parts, found=found)

    return streams.connect(write_to, read)


def _collect(piece: Piece, documents: dict[str, bytearray]) -> None:
    """Check the name of a part that becomes a file, and keep the secrets."""
    kind, _, name = piece.part.partition("/")
    if piece.part == SECRETS:
        documents.setdefault(SECRETS, bytearray()).extend(piece.content)
    elif kind not in {"files", WAL} or not _FILE_NAME.fullmatch(name) or (kind == "files" and name not in FILES):
        raise BackupUnreadable(f"The backup has a part {piece.part!r}, which is unknown.", "Use another copy of it.")


def _require_known(manifest: dict[str, Any], known: set[str]) -> None:
    if manifest.get("format") != encryption.FORMAT:
        raise BackupUnreadable(
            f"The backup has format {manifest.get('format')}, and this version of Hearth reads {encryption.FORMAT}.",
            "Restore it with the version that made it.",
        )
    apps = {name.partition(".")[0] for name in known}
    unknown = [name for name in manifest["migrations"] if name.partition(".")[0] in apps and name not in known]
    if unknown:
        raise BackupUnreadable(
            f"The backup is of a newer version of Hearth: this one does not know its migration {unknown[-1]}.",
            "Restore it with that version or a later one.",
        )


def _database_pieces(pieces: Iterator[Piece], other: Callable[[Piece], None]) -> Iterator[bytes]:
    """Yield the pieces of the dump, which is the last part, and give each earlier piece to ``other``."""
    for piece in pieces:
        if piece.part == DATABASE:
            yield piece.content
        else:
            other(piece)


def _is_filled(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _move_aside(data_dir: Path, names: list[str]) -> None:
    aside = data_dir / time.strftime("replaced-%Y%m%dT%H%M%SZ", time.gmtime())
    aside.mkdir(mode=0o700)
    for name in names:
        (data_dir / name).rename(aside / name)


def _restore(instance: Instance, write_to: Callable[[IO[bytes]], None], verified: Verified) -> None:
    server = instance.postgres(verified.found)
    wal = instance.data_dir / WAL
    wal.mkdir(mode=0o700, exist_ok=True)
    made: list[Path] = []
    try:
        url = instance.database_owner_url or instance.database_url if server is None else server.start().owner
        streams.connect(write_to, lambda source: _read_into(instance, url, source, made))
        _sync(wal)
        secrets.write_new(instance.data_dir, secrets.as_json(verified.found))
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        _remove(instance, server)
        raise
    if server is not None:
        server.stop()


def _read_into(instance: Instance, url: str, source: IO[bytes], made: list[Path]) -> None:
    archive = ArchiveReader(source)
    pieces = archive.pieces()
    database_dump.restore(url, _database_pieces(pieces, lambda piece: _write_file(instance, piece, made)))
    for piece in pieces:
        _write_file(instance, piece, made)


def _write_file(instance: Instance, piece: Piece, made: list[Path]) -> None:
    if piece.part == SECRETS:
        return
    kind, _, name = piece.part.partition("/")
    path = instance.data_dir / WAL / name if kind == WAL else instance.data_dir / name
    if path not in made:
        made.append(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, encryption.PRIVATE)
    else:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    with os.fdopen(descriptor, "wb") as file:
        file.write(piece.content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(instance: Instance, server: PostgresServer | None) -> None:
    """Remove the embedded database that was being filled. One of DATABASE_URL rolled the restore back."""
    if server is not None:
        server.stop()
        shutil.rmtree(instance.data_dir / "postgres", ignore_errors=True)


def as_text(verified: Verified) -> str:
    """Return what is in the backup as lines for an operator."""
    manifest = verified.manifest
    lines = [f"Hearth {manifest['hearth']}, node {manifest['node']}, taken at {manifest['taken_at']}"]
    lines += [f"  {name}: {size:,} bytes" for name, size in verified.parts.items()]
    return "\n".join(lines)
