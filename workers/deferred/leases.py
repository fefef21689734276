"""Renew the leases of the requests that this process runs, in one thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import Error, connection

from workers.deferred import claims
from workers.deferred.claims import RENEW_SECONDS, Claim

log = logging.getLogger(__name__)


class LeaseKeeper:
    """The leases of one process. Thread-safe. Its thread lives while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost: dict[Claim, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def keep(self, claimed: Claim, lost: Callable[[], None]) -> Iterator[None]:
        """Renew the lease during the block. ``lost`` is called, once, if another worker has taken the request."""
        with self._lock:
            self._lost[claimed] = lost
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew, name="deferred-leases", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._lost.pop(claimed, None)

    def _renew(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(RENEW_SECONDS)
            with self._lock:
                running = list(self._lost)
                if not running:
                    self._thread = None
                    break
            try:
                held = claims.renew(running)
            except Error as error:
                log.warning("leases of deferred requests cannot be renewed: %s", error)
                connection.close()
                continue
            for each in running:
                with self._lock:
                    lost = self._lost.pop(each, None) if each.id not in held else None
                if lost is not None:
                    lost()
        connection.close()
