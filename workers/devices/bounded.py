"""Devices whose calls end in time, whatever their driver does.

A GPU that fails can leave a call of NVML in the kernel for minutes or for ever, and the thread with it. The calls
therefore run in a thread of their own, one after another, and the caller gives up after a while.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from workers.devices.errors import DevicesUnreadable
from workers.devices.provider import Device, DeviceProvider, Reading

T = TypeVar("T")
#: A call takes milliseconds; the first one, which initialises the driver, up to a second or two.
TIMEOUT_SECONDS = 5.0


@dataclass(slots=True)
class BoundedDevices:
    """The devices of ``provider``. Any thread may call it.

    A call that is not back after ``timeout_seconds`` is given up. Until it is back every further call fails at once.
    """

    provider: DeviceProvider
    timeout_seconds: float = TIMEOUT_SECONDS
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None
    #: By time.monotonic(): when the call began that runs now; None while none runs.
    _began_at: float | None = None

    def devices(self) -> tuple[Device, ...]:
        """Return the devices. Raises DevicesUnreadable, also when the driver does not answer."""
        return self._run(self.provider.devices)

    def in_use(self, uuid: str) -> str:
        """Return what still uses the device, or that the driver does not answer; empty once it is free."""
        try:
            return self._run(lambda: self.provider.in_use(uuid))
        except DevicesUnreadable as error:
            return str(error)

    def reading(self, uuid: str) -> Reading:
        """Return what the device does now. Raises DevicesUnreadable, also when the driver does not answer."""
        return self._run(lambda: self.provider.reading(uuid))

    def _run(self, call: Callable[[], T]) -> T:
        began_at = self._began_at
        if began_at is not None and time.monotonic() - began_at > self.timeout_seconds:
            raise self._stuck(began_at)
        future: Future[T] = Future()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="devices", daemon=True)
                self._thread.start()
        self._calls.put((future, call))
        try:
            return future.result(self.timeout_seconds)
        except TimeoutError:
            future.cancel()  # if another call is stuck before it, it never runs
            raise self._stuck(self._began_at) from None

    def _stuck(self, began_at: float | None) -> DevicesUnreadable:
        seconds = self.timeout_seconds if began_at is None else time.monotonic() - began_at
        return DevicesUnreadable("devices", f"the driver has not answered for {seconds:.0f} s")

    def _work(self) -> None:
        while True:
            future, call = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            self._began_at = time.monotonic()
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            finally:
                self._began_at = None
