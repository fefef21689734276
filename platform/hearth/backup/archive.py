"""The parts of a backup as a tar stream: a manifest, parts in pieces, and the size and SHA-256 of each part at the end.

Part ``database`` is the members ``database/00000000``, ``database/00000001`` and so on, because its size is not known
before it ends: ``cat database/*`` joins them. An archive without its last member is incomplete.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from hearth.backup.errors import BackupUnreadable

MANIFEST = "manifest.json"
CHECKSUMS = "checksums.json"
PIECE_BYTES = 1 << 20
LARGEST_DOCUMENT_BYTES = 64 << 20


class ArchiveWriter:
    """Writes the parts one after another."""

    def __init__(self, destination: IO[bytes]) -> None:
        # not mode w|, whose object writes when it is collected, to a pipe that may be closed
        counted: Any = _Counted(destination)
        self._tar = tarfile.open(fileobj=counted, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self._sums: dict[str, dict[str, Any]] = {}

    def manifest(self, content: dict[str, Any]) -> None:
        """Write the first member."""
        self._add(MANIFEST, json.dumps(content).encode())

    def part(self, name: str, source: IO[bytes], *, limit: int | None = None) -> None:
        """Write a part with the rest of ``source``, at most ``limit`` bytes of it; an empty one as an empty piece."""
        digest, total, left = hashlib.sha256(), 0, limit
        number = 0
        while piece := source.read(PIECE_BYTES if left is None else min(PIECE_BYTES, left)):
            self._add(f"{name}/{number:08d}", piece)
            digest.update(piece)
            total, number = total + len(piece), number + 1
            left = None if left is None else left - len(piece)
        if number == 0:
            self._add(f"{name}/{number:08d}", b"")
        self._sums[name] = {"bytes": total, "sha256": digest.hexdigest()}

    def finish(self) -> dict[str, int]:
        """Write the last member; return the bytes of each part."""
        self._add(CHECKSUMS, json.dumps(self._sums).encode())
        self._tar.close()
        return {name: found["bytes"] for name, found in self._sums.items()}

    def _add(self, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        member.mode = 0o600
        self._tar.addfile(member, io.BytesIO(content))


class _Counted:
    """A pipe that knows how much was written."""

    def __init__(self, destination: IO[bytes]) -> None:
        self._destination = destination
        self._written = 0

    def write(self, content: bytes) -> int:
        self._destination.write(content)
        self._written += len(content)
        return len(content)

    def tell(self) -> int:
        return self._written


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a part."""

    part: str
    content: bytes


class ArchiveReader:
    """Reads the manifest, then the pieces, and compares each part with its checksum."""

    def __init__(self, source: IO[bytes]) -> None:
        try:
            self._tar = tarfile.open(fileobj=source, mode="r|")  # noqa: SIM115
            name, content = self._next() or ("", b"")
            self.manifest: dict[str, Any] = json.loads(content) if name == MANIFEST else {}
        except (tarfile.TarError, ValueError) as error:
            raise _damaged(str(error)) from error
        if not self.manifest:
            raise _damaged("it has no manifest")
        #: The bytes of each part, once all were read.
        self.parts: dict[str, int] = {}

    def pieces(self) -> Iterator[Piece]:
        """Yield every piece in order. Raises BackupUnreadable, at the end, unless every part is complete."""
        digests: dict[str, Any] = {}
        counted: dict[str, int] = {}
        try:
            while (found := self._next()) is not None:
                name, content = found
                if name == CHECKSUMS:
                    self._compare(json.loads(content), digests, counted)
                    return
                part = name.rpartition("/")[0]
                digests.setdefault(part, hashlib.sha256()).update(content)
                counted[part] = counted.get(part, 0) + len(content)
                yield Piece(part=part, content=content)
        except (tarfile.TarError, ValueError, KeyError) as error:
            raise _damaged(str(error)) from error
        raise _damaged("its end is missing")

    def _compare(self, sums: dict[str, Any], digests: dict[str, Any], counted: dict[str, int]) -> None:
        empty = hashlib.sha256()
        for part in sums.keys() | digests.keys():
            expected = sums.get(part)
            if expected is None or digests.get(part, empty).hexdigest() != expected["sha256"]:
                raise _damaged(f"the part {part} differs from its checksum")
        self.parts = {part: counted.get(part, 0) for part in sums}

    def _next(self) -> tuple[str, bytes] | None:
        member = self._tar.next()
        if member is None:
            return None
        file = self._tar.extractfile(member)
        if file is None or member.size > LARGEST_DOCUMENT_BYTES:
            raise _damaged(f"{member.name} is not a part of a backup")
        return member.name, file.read()


def _damaged(what: str) -> BackupUnreadable:
    return BackupUnreadable(f"The backup is damaged: {what}.", "Use another copy of it.")
