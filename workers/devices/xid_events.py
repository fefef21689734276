"""Count the Xid errors that NVIDIA's driver reports, by GPU.

NVML reports an Xid error as an event, once, to each process that registered before it happened; there is no counter to
read. The driver queues events until they are taken, so nobody has to wait for one.
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass, field
from typing import Any

import pynvml

log = logging.getLogger(__name__)

#: Events taken at once, so that a GPU that reports one after another does not hold up the reading.
MOST_EVENTS = 256


@dataclass(slots=True)
class Xids:
    """The Xid errors of one GPU since it was registered: how many, and the number of the last one."""

    count: int = 0
    last: int | None = None


@dataclass(slots=True)
class XidEvents:
    """The errors of each GPU that was asked for, from the first time on. One thread calls it."""

    _set: Any = None
    _by_uuid: dict[str, Xids] = field(default_factory=dict)
    _by_handle: dict[int, str] = field(default_factory=dict)

    def of(self, uuid: str, handle: Any) -> Xids | None:
        """Return the GPU's errors so far; None if the driver lets this process register no events for it.

        Raises pynvml.NVMLError.
        """
        if uuid not in self._by_uuid and not self._register(uuid, handle):
            return None
        self._take()
        return self._by_uuid[uuid]

    def _register(self, uuid: str, handle: Any) -> bool:
        if self._set is None:
            self._set = pynvml.nvmlEventSetCreate()
        try:
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission, pynvml.NVMLError_Unknown):
            return False
        self._by_uuid[uuid] = Xids()
        self._by_handle[_address(handle)] = uuid
        return True

    def _take(self) -> None:
        """Count the events that are queued, without waiting for any."""
        for _ in range(MOST_EVENTS):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError_Timeout:
                return
            uuid = self._by_handle.get(_address(event.device))
            if uuid is not None and event.eventType & pynvml.nvmlEventTypeXidCriticalError:
                found = self._by_uuid[uuid]
                found.count, found.last = found.count + 1, int(event.eventData)
                log.warning("%s: the driver reports Xid %s", uuid, found.last)


def _address(handle: Any) -> int:
    """Return what identifies a GPU within this process, also once it has fallen off the bus and has no UUID to read."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
