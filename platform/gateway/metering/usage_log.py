"""The usage log as a request sees it, and as one attempt of a deferred request sees it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

import msgspec

from billing.errors import WalError
from billing.wal.records import End, Record, Start, Withdrawn

#: Interval at which a record that could not be written is retried, seconds.
RETRY_SECONDS = 1.0


class UsageLog(Protocol):
    """The part of ``billing.wal.writer.WalWriter`` that requests use."""

    @property
    def failure(self) -> WalError | None: ...
    def append(self, *records: Record) -> None: ...
    async def synced(self) -> None: ...


class AttemptLog:
    """The log of one attempt of a deferred request. It holds the END back until the response is stored.

    The attempt then ends in one of two ways: :meth:`commit` writes the END, :meth:`withdraw` leaves no row. An attempt
    whose process dies leaves none either.
    """

    def __init__(self, wal: UsageLog) -> None:
        self._wal = wal
        self._start: Start | None = None
        self._end: End | None = None
        self._closed = False

    @property
    def failure(self) -> WalError | None:
        """Why the log is unusable; None while it is usable."""
        return self._wal.failure

    @property
    def usage(self) -> tuple[Start, End] | None:
        """What the attempt used; None if it has not ended, or nothing is recorded."""
        return None if self._start is None or self._end is None else (self._start, self._end)

    def append(self, *records: Record) -> None:
        """Write the records, except an END. Raises WalError."""
        written: list[Record] = []
        for record in records:
            if isinstance(record, Start):
                written.append(msgspec.structs.replace(record, deferred=True))
            elif not isinstance(record, End):
                written.append(record)
        if written:
            self._wal.append(*written)
        for record in records:
            if isinstance(record, Start):
                self._start = record
            elif isinstance(record, End):
                self._end = record

    async def synced(self) -> None:
        """Wait until everything appended so far is on disk. Raises WalError."""
        await self._wal.synced()

    async def commit(self) -> None:
        """Write the END, whose row is stored already. Waits while the disk is full."""
        if self._end is None:
            await self.withdraw()
        else:
            await self._close(self._end)

    async def withdraw(self) -> None:
        """Close the attempt without a row. Waits while the disk is full. Does nothing after :meth:`commit`."""
        if self._start is not None:
            await self._close(Withdrawn(request_id=self._start.request_id, at_ns=time.time_ns()))

    async def _close(self, last: End | Withdrawn) -> None:
        if self._closed:
            return
        self._closed = True
        while True:
            try:
                self._wal.append(last)
            except WalError:
                if self._wal.failure is not None:
                    return
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return
