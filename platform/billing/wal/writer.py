"""Write usage records so that a killed process loses none: one write(2) per append, then fdatasync.

After the write the record is in the kernel's page cache and survives a crash of the process. The sync makes it survive
a crash of the host: in mode ``group`` a thread syncs immediately when idle and at most 10 ms after a write; in mode
``always`` it syncs without pause and :meth:`WalWriter.synced` waits for it. No Django here.

A new segment begins with the START and last PROGRESS of every open request, so that a segment is needed only until it
is drained, however long a stream that began in it lasts. When the directory has reached its cap, the log refuses a
START, but never the later records of a request.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Literal
from zlib import crc32

from billing import metrics
from billing.errors import RecordTooLarge, WalBroken, WalClosed, WalError, WalFull, WalOverCap
from billing.wal.disk_usage import SEGMENTS_IN_CAP, DiskQuota
from billing.wal.records import End, Record, Start, Withdrawn, encode
from billing.wal.segments import FRAME, HEADER, MAX_PAYLOAD_BYTES, header, lock_path, segment_path
from tenants.ids import RequestId, new_id

SyncMode = Literal["group", "always"]

#: The longest a written record waits for its sync in mode ``group``.
GROUP_SECONDS = 0.010
SEGMENT_BYTES = 64 * 1024 * 1024
#: EFBIG: the process's limit on file sizes.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class WalWriter:
    """The log of one process. Thread-safe. Create it after any fork: a forked child would keep its lock."""

    def __init__(
        self,
        directory: Path,
        role: str,
        sync: SyncMode = "group",
        *,
        max_bytes: int | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Open the first segment. ``role`` is lower-case letters and digits. Raises WalError.

        ``max_bytes`` caps the directory, all writers' logs together; None: no cap.
        """
        if not re.fullmatch("[a-z0-9]+", role):
            raise ValueError(f"role {role!r}: lower-case letters and digits only")
        self.writer_id = new_id()
        self._directory = directory
        self._role = role
        self._waits = sync == "always"
        self._pause_seconds = 0.0 if self._waits else GROUP_SECONDS
        self.disk_quota = None if max_bytes is None else DiskQuota(directory, max_bytes)
        self._segment_bytes = segment_bytes if max_bytes is None else min(segment_bytes, max_bytes // SEGMENTS_IN_CAP)
        #: What a new segment begins with: START and last PROGRESS of each open request, as frames.
        self._open: dict[RequestId, tuple[bytes, bytes]] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._number = 0
        self._descriptor = -1
        self._appended = 0
        self._synced = 0
        #: Bytes written and not yet counted for Prometheus: counting takes as long as encoding a record.
        self._uncounted_bytes = 0
        self._retired: list[int] = []
        self._waiting: list[tuple[int, Future[None]]] = []
        self._failure: WalError | None = None
        self._refusal: WalError | None = None
        self._closed = False
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_descriptor = self._take_lock()
        try:
            self._open_segment()
        except WalError:
            self._release_lock()
            raise
        self._thread = threading.Thread(target=self._sync_forever, name="wal-sync", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> WalError | None:
        """Why this writer is unusable; None while it is usable."""
        return self._failure

    @property
    def refusal(self) -> WalError | None:
        """Why the last append failed; None if it did not. The next append may succeed."""
        return self._refusal

    def append(self, *records: Record) -> None:
        """Write all records or none, in order, in one write(2). Returns when the kernel has them.

        Raises WalFull or WalOverCap (retry later), WalBroken, WalClosed or RecordTooLarge; the caller must then refuse
        the request.
        """
        frames = [self._frame(encode(record)) for record in records]
        data = b"".join(frames)
        with self._lock:
            begins = isinstance(records[0], Start) and records[0].request_id not in self._open
            try:
                if begins and self.disk_quota is not None and self.disk_quota.usage().is_full:
                    self._refuse_start(self.disk_quota)
                self._append(data)
            except WalError as error:
                self._refusal = error
                metrics.APPEND_ERRORS.inc()
                raise
            self._refusal = None
            self._appended += len(records)
            # A request that begins and ends in one append (a prediction hit) is never open.
            if not (begins and len(records) == 2 and isinstance(records[1], End)):
                for record, frame in zip(records, frames, strict=True):
                    self._remember(record, frame)
            self._uncounted_bytes += len(data)
        if not self._wake.is_set():
            self._wake.set()

    async def synced(self) -> None:
        """Wait until everything appended so far is on disk; in mode ``group`` return immediately.

        Raises the error of a failed sync.
        """
        if not self._waits:
            return
        future: Future[None] = Future()
        with self._lock:
            if self._synced >= self._appended:
                return
            if self._failure is not None:
                raise self._failure
            self._waiting.append((self._appended, future))
        await asyncio.wrap_future(future)

    def close(self) -> None:
        """Sync, close, and release the lock, which tells the drain that the log is complete. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._failure = self._failure or WalClosed(self._path, "the writer is closed")
        self._wake.set()
        self._thread.join()
        os.close(self._descriptor)
        os.close(self._lock_descriptor)

    def _append(self, data: bytes) -> None:
        if self._failure is not None:
            raise self._failure
        own_bytes = self._size - self._carried
        if own_bytes + len(data) > self._segment_bytes and own_bytes > HEADER.size:
            self._open_segment()
        self._write(data)

    def _refuse_start(self, quota: DiskQuota) -> None:
        """Raise WalOverCap. First start a new segment if this one is large, so that the drain can remove it."""
        if self._failure is None and self._size - self._carried > self._segment_bytes // 4:
            self._open_segment()
            self._wake.set()
        raise WalOverCap(self._path, f"the log takes {quota.usage().describe()}; retry when the drain has caught up")

    def _remember(self, record: Record, frame: bytes) -> None:
        """Remember what a new segment must begin with."""
        if isinstance(record, End | Withdrawn):
            self._open.pop(record.request_id, None)
            return
        known = self._open.get(record.request_id)
        if isinstance(record, Start):
            self._open[record.request_id] = (frame, b"" if known is None else known[1])
        elif known is not None:
            self._open[record.request_id] = (known[0], frame)

    def _release_lock(self) -> None:
        lock_path(self._directory, self._role, self.writer_id).unlink()
        os.close(self._lock_descriptor)

    def _frame(self, payload: bytes) -> bytes:
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise RecordTooLarge(self._path, f"a record of {len(payload)} bytes, at most {MAX_PAYLOAD_BYTES}")
        return FRAME.pack(len(payload), crc32(payload)) + payload

    def _take_lock(self) -> int:
        path = lock_path(self._directory, self._role, self.writer_id)
        try:
            descriptor = _create(path)
        except OSError as error:
            raise _error(path, error) from error
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor

    def _open_segment(self) -> None:
        """Continue in a new file; the sync thread closes the old one. Nothing changes if it raises."""
        path = segment_path(self._directory, self._role, self.writer_id, self._number + 1)
        carried = [frame for frames in self._open.values() for frame in frames]
        start = b"".join((header(self.writer_id, self._number + 1), *carried))
        descriptor = -1
        try:
            descriptor = _create(path, os.O_APPEND)
            if os.write(descriptor, start) != len(start):
                raise OSError(errno.ENOSPC, "short write")
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
                path.unlink()
            raise _error(path, error) from error
        if self._number:
            self._retired.append(self._descriptor)
        self._descriptor, self._path, self._size = descriptor, path, len(start)
        self._carried = len(start) - HEADER.size
        self._number += 1
        self._directory_dirty = True

    def _write(self, data: bytes) -> None:
        """Append all of ``data``, or truncate the file to its previous size and raise."""
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            raise self._refused(error) from error
        if written != len(data):
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError as error:
                # Part of a frame stays: later records after it could not be read.
                self._failure = WalBroken(self._path, f"cannot undo a short write: {error.strerror}")
                raise self._failure from error
            raise WalFull(self._path, "no space left")
        self._size += len(data)

    def _refused(self, error: OSError) -> WalError:
        found = _error(self._path, error)
        if isinstance(found, WalBroken):
            self._failure = found
        return found

    def _sync_forever(self) -> None:
        """Sync after appends, no more often than the pause allows, and once more at the end."""
        while True:
            self._wake.wait()
            self._wake.clear()
            began = time.monotonic()
            self._sync_once()
            if self._closed:
                # close() may have been called after the sync began; later appends must be synced too.
                self._sync_once()
                return
            rest = self._pause_seconds - (time.monotonic() - began)
            if rest > 0:
                time.sleep(rest)

    def _sync_once(self) -> None:
        with self._lock:
            target, current, retired = self._appended, self._descriptor, self._retired
            directory_dirty, self._retired, self._directory_dirty = self._directory_dirty, [], False
            uncounted_bytes, self._uncounted_bytes = self._uncounted_bytes, 0
        metrics.APPENDED_BYTES.inc(uncounted_bytes)
        failure: WalError | None = None
        try:
            if directory_dirty:
                _sync_directory(self._directory)
            for descriptor in (*retired, current):
                os.fdatasync(descriptor)
        except OSError as error:
            failure = WalBroken(self._path, f"cannot sync: {error.strerror}")
        for descriptor in retired:
            os.close(descriptor)
        self._settle(target, failure)

    def _settle(self, target: int, failure: WalError | None) -> None:
        with self._lock:
            if failure is None:
                self._synced = target
            else:
                self._failure = failure
            done = [future for wanted, future in self._waiting if failure or wanted <= target]
            self._waiting = [entry for entry in self._waiting if entry[1] not in done]
        for future in done:
            if not future.set_running_or_notify_cancel():
                continue
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)


def _error(path: Path, error: OSError) -> WalError:
    kind = WalFull if error.errno in _NO_ROOM else WalBroken
    return kind(path, error.strerror or str(error))


def _create(path: Path, flags: int = 0) -> int:
    """Create a file that belongs to the folder's owner: root's agent writes where another account drains."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600)
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def _sync_directory(directory: Path) -> None:
    """Make new file names survive a crash of the host."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
