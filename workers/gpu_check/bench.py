"""What the checks of one run share: the devices, which of them are free, and what can run on them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from workers import processes
from workers.devices.cpu import CpuShares
from workers.devices.errors import DevicesUnreadable
from workers.devices.fake import FakeDevices
from workers.devices.provider import Device, DeviceProvider
from workers.engines.trial import Trials
from workers.gpu_check.findings import Failed, Untried
from workers.gpu_check.throwaway_instance import ThrowawayInstance
from workers.processes import ProcessIdentity

Kind = Literal["GPU", "fake device", "share of a CPU"]
POLL_SECONDS = 0.01
#: Time between two checks of who claims the devices. Each check reads all processes of the machine.
CLAIMS_POLL_SECONDS = 0.2
#: An evicted process's memory is free within this time.
RELEASE_SECONDS = 2.0
#: After this long a device counts as not released at all.
GIVE_UP_SECONDS = 30.0


@dataclass(slots=True, kw_only=True)
class Bench:
    """The place of one run. ``free``: devices that worked and that nobody used at its start; only these are touched."""

    provider: DeviceProvider
    #: An interpreter with PyTorch, or None.
    python: Path | None
    #: Starts engines; None where none is installed.
    trials: Trials | None
    #: For checks of what an agent does; None: they are not made.
    instance: ThrowawayInstance | None = None
    #: By the monotonic clock: no check begins after it.
    deadline: float = math.inf
    #: Memory that a process holds on a GPU, to see it freed.
    hold_bytes: int = 2**30
    free: list[Device] = field(default_factory=list)
    #: Returns the process that holds a device, as text, also before the driver shows the device as used; else empty.
    claim_on: Callable[[Device], str] = lambda _: ""
    #: How long a check waits for devices that an earlier one used.
    patience_seconds: float = GIVE_UP_SECONDS

    @property
    def kind(self) -> Kind:
        """Return what the devices are."""
        if isinstance(self.provider, FakeDevices):
            return "fake device"
        return "share of a CPU" if isinstance(self.provider, CpuShares) else "GPU"

    def device(self) -> Device:
        """Return a free device, as :meth:`devices` does. Raises Untried."""
        return self.devices(1)[0]

    def devices(self, count: int) -> list[Device]:
        """Return ``count`` devices that are free at this moment.

        Waits, because an earlier check's memory may not be released yet; and a node that serves may have taken devices
        since. Raises Untried.
        """
        if not self.free:
            raise Untried("no device is free")
        if len(self.free) < count:
            raise Untried(f"it takes {count} free devices, and there are {len(self.free)}")
        deadline = time.monotonic() + self.patience_seconds
        while True:
            busy = {device.uuid: why for device in self.free if (why := self.holder(device))}
            ready = [device for device in self.free if device.uuid not in busy]
            if len(ready) >= count:
                return ready[:count]
            if time.monotonic() > deadline:
                shown = "; ".join(f"{uuid} ({why})" for uuid, why in busy.items())
                raise Untried(f"it takes {count}, and these are in use: {shown}")
            time.sleep(CLAIMS_POLL_SECONDS)

    def holder(self, device: Device) -> str:
        """Return who uses the device or claims it, as text; empty while it is free."""
        return self.claim_on(device) or self.provider.in_use(device.uuid)

    def used_by(self, process: ProcessIdentity, device: Device) -> str:
        """Return what uses the device, unless it is certain that no process of this one's session does.

        In a container NVML may list no processes, or those of the host by numbers that mean nothing here.
        """
        why = self.provider.in_use(device.uuid)
        pids: tuple[int, ...] = ()
        with suppress(DevicesUnreadable):
            pids = self.provider.reading(device.uuid).pids
        own = {member.pid for member in processes.session_members(process)}
        others = bool(pids) and own.isdisjoint(pids) and all(processes.identify(pid) is not None for pid in pids)
        return "" if others else why

    def names(self, *devices: Device) -> tuple[str, ...]:
        """Return the UUIDs of GPUs that an engine is given, and nothing for other devices."""
        return tuple(each.uuid for each in devices) if self.kind == "GPU" else ()

    def engines(self) -> Trials:
        """Return what starts engines. Raises Untried."""
        if self.trials is None:
            raise Untried("no engine to start; `hearth engine install` installs vLLM")
        return self.trials

    def throwaway(self) -> ThrowawayInstance:
        """Return the instance that the checks of an agent share. Raises Untried."""
        if self.instance is None:
            raise Untried("no instance may be started")
        return self.instance

    def interpreter(self) -> Path:
        """Return an interpreter with PyTorch. Raises Untried."""
        if self.python is None:
            raise Untried("no interpreter with PyTorch is known; --python names one")
        return self.python

    def occupy(self, devices: Sequence[Device], process: ProcessIdentity) -> None:
        """Let fake devices be in use by a process; a GPU's driver sees that by itself."""
        if isinstance(self.provider, FakeDevices):
            path = self.provider.path
            faults = json.loads(path.read_text()) if path.exists() else {}
            used = {device.uuid: faults.get(device.uuid, {}) | {"pid": process.pid} for device in devices}
            path.write_text(json.dumps(faults | used))

    def wait_until_used(self, devices: Sequence[Device]) -> None:
        """Return once all the devices are in use. Raises Failed."""
        for device in devices:
            self._wait(device, used=True)

    def wait_until_free(self, devices: Sequence[Device]) -> float:
        """Return after how many seconds all the devices were free. Raises Failed."""
        began = time.monotonic()
        for device in devices:
            self._wait(device, used=False)
        return time.monotonic() - began

    def _wait(self, device: Device, *, used: bool) -> None:
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while bool(why := self.provider.in_use(device.uuid)) != used:
            if time.monotonic() > deadline:
                raise Failed(
                    f"after {GIVE_UP_SECONDS:.0f} s {device.uuid} is {f'in use: {why}' if why else 'not in use'}"
                )
            time.sleep(POLL_SECONDS)
