"""The file of a backup: what opens it, what is refused, and that a damaged one never looks whole."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path

import pytest

from hearth.backup import encryption, streams
from hearth.backup.archive import PIECE_BYTES, ArchiveReader, ArchiveWriter, Piece
from hearth.backup.encryption import DecryptionKey, EncryptionKey
from hearth.backup.errors import BackupError, BackupUnreadable

LARGE = bytes(range(256)) * (PIECE_BYTES // 100)


def test_a_private_key_is_only_for_its_owner_and_never_replaces_a_file(tmp_path: Path) -> None:
    public = encryption.make_identity(tmp_path / "key")
    assert public.startswith("age1")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    with pytest.raises(BackupError, match="cannot be made"):
        encryption.make_identity(tmp_path / "key")


def test_what_was_encrypted_to_a_public_key_opens_with_its_private_key_alone(tmp_path: Path) -> None:
    public = encryption.make_identity(tmp_path / "key")
    encryption.make_identity(tmp_path / "other")
    file = _backup(EncryptionKey(recipients=[public]))
    assert _read(file, DecryptionKey(identities=(tmp_path / "key").read_text())) == LARGE
    with pytest.raises(BackupUnreadable, match="cannot be decrypted"):
        _read(file, DecryptionKey(identities=(tmp_path / "other").read_text()))
    with pytest.raises(BackupUnreadable, match="--identity"):
        _read(file, DecryptionKey(passphrase=lambda: "a passphrase"))


@pytest.mark.long  # its key takes half a minute of a busy machine, on purpose
def test_what_was_encrypted_to_a_passphrase_opens_with_that_passphrase_alone() -> None:
    file = _backup(EncryptionKey(passphrase="correct horse"))
    assert b"correct horse" not in file.getvalue()
    assert _read(file, DecryptionKey(passphrase=lambda: "correct horse")) == LARGE
    with pytest.raises(BackupUnreadable, match="not the one of this backup"):
        _read(file, DecryptionKey(passphrase=lambda: "wrong horse"))


@pytest.mark.parametrize("cut", [0, 1, 70_000, "middle", "last byte"])
def test_a_shortened_or_altered_file_is_refused(tmp_path: Path, cut: int | str) -> None:
    public = encryption.make_identity(tmp_path / "key")
    whole = _backup(EncryptionKey(recipients=[public])).getvalue()
    if cut == "middle":
        changed = whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :]
    else:
        changed = whole[: len(whole) - 1 if cut == "last byte" else int(cut)]
    with pytest.raises(BackupUnreadable):
        _read(io.BytesIO(changed), DecryptionKey(identities=(tmp_path / "key").read_text()))


def test_an_archive_that_ends_early_is_refused_although_it_is_authentic() -> None:
    plain = io.BytesIO()
    archive = ArchiveWriter(plain)
    archive.manifest({"format": 1})
    archive.part("database", io.BytesIO(LARGE))
    plain.seek(0)  # as after a failure: without the last member
    with pytest.raises(BackupUnreadable, match="its end is missing"):
        list(ArchiveReader(plain).pieces())


def test_a_later_format_is_refused_with_what_to_do() -> None:
    file = io.BytesIO(json.dumps({"hearth_backup": encryption.FORMAT + 1}).encode() + b"\nsomething")
    with pytest.raises(BackupUnreadable, match="a later one"):
        encryption.opened(file, DecryptionKey())


def test_a_wrong_public_key_is_named() -> None:
    with pytest.raises(BackupError, match="'age1wrong' is not a public key"):
        _backup(EncryptionKey(recipients=["age1wrong"]))


def _backup(key: EncryptionKey) -> io.BytesIO:
    file = io.BytesIO()

    def write(destination: io.BufferedIOBase) -> None:
        archive = ArchiveWriter(destination)  # type: ignore[arg-type]
        archive.manifest({"format": 1})
        archive.part("empty", io.BytesIO())
        archive.part("database", io.BytesIO(LARGE))
        archive.finish()

    streams.connect(write, lambda source: encryption.encrypt(source, file, key))  # type: ignore[arg-type]
    return file


def _read(file: io.BytesIO, key: DecryptionKey) -> bytes:
    """Return the part ``database``, as a restore reads it: the whole file, twice."""
    write_to = encryption.opened(file, key)

    def read(source: object) -> list[Piece]:
        return list(ArchiveReader(source).pieces())  # type: ignore[arg-type]

    first, second = streams.connect(write_to, read), streams.connect(write_to, read)
    assert first == second
    return b"".join(piece.content for piece in second if piece.part == "database")


def test_an_empty_part_is_a_part() -> None:
    plain = io.BytesIO()
    writer = ArchiveWriter(plain)
    writer.manifest({"format": 1})
    writer.part("mark", io.BytesIO())
    assert writer.finish() == {"mark": 0}
    plain.seek(0)
    reader = ArchiveReader(plain)
    assert list(reader.pieces()) == [Piece(part="mark", content=b"")]
    assert reader.parts == {"mark": 0}
