"""An event that also watches processes: a wait ends when it is set, when a watched process ends, or on a timeout."""

from __future__ import annotations

import contextlib
import os
import select

from workers.processes import ProcessIdentity, is_running


class WakeEvent:
    """One thread waits; any thread sets it. Watched processes need not be children."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._event, select.POLLIN)
        self._watched: set[int] = set()

    def set(self) -> None:
        """End the current wait, or the next one at once."""
        os.eventfd_write(self._event, 1)

    def watch(self, process: ProcessIdentity) -> None:
        """Set the event once when the process ends; at once if it has ended already. Only for the waiting thread."""
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self.set()
            return
        if not is_running(process):  # the pid may have been reused by another process
            os.close(descriptor)
            self.set()
            return
        self._watched.add(descriptor)
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout_seconds: float) -> None:
        """Return when the event is set, when a watched process ends, or after the timeout."""
        for descriptor, _ in self._poll.poll(max(0.0, timeout_seconds) * 1000):
            if descriptor == self._event:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._event)
            else:
                self._drop(descriptor)

    def close(self) -> None:
        """Stop watching every process. A late :meth:`set` does no harm."""
        for descriptor in tuple(self._watched):
            self._drop(descriptor)

    def _drop(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        self._watched.discard(descriptor)
        os.close(descriptor)
