"""What the checks of one run share: the devices, which of them are free, and what can run on them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from workers.devices.cpu import CpuShares
from workers.devices.fake import FakeDevices
from workers.devices.provider import Device, DeviceProvider
from workers.engines.trial import Trials
from workers.gpu_check.findings import Failed, Untried
from workers.processes import ProcessIdentity

Kind = Literal["GPU", "fake device", "share of a CPU"]
POLL_SECONDS = 0.01
#: An evicted process's memory is free within this time.
RELEASE_SECONDS = 2.0
#: After this long a device counts as not released at all.
GIVE_UP_SECONDS = 30.0


@dataclass(slots=True, kw_only=True)
class Bench:
    """The place of one run. ``free``: devices that work and that nobody uses; only these are touched."""

    provider: DeviceProvider
    #: An interpreter with PyTorch, or None.
    python: Path | None
    #: Starts engines; None where none is installed.
    trials: Trials | None
    #: Memory that a process holds on a GPU, to see it freed.
    hold_bytes: int = 2**30
    free: list[Device] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        """Return what the devices are."""
        if isinstance(self.provider, FakeDevices):
            return "fake device"
        return "share of a CPU" if isinstance(self.provider, CpuShares) else "GPU"

    def device(self) -> Device:
        """Return a free device. Raises Untried."""
        if not self.free:
            raise Untried("no device is free")
        return self.free[0]

    def names(self, *devices: Device) -> tuple[str, ...]:
        """Return what an engine is told of its devices: UUIDs of GPUs, nothing of others."""
        return tuple(each.uuid for each in devices) if self.kind == "GPU" else ()

    def engines(self) -> Trials:
        """Return what starts engines. Raises Untried."""
        if self.trials is None:
            raise Untried("no engine to start; `hearth engine install` installs vLLM")
        return self.trials

    def interpreter(self) -> Path:
        """Return an interpreter with PyTorch. Raises Untried."""
        if self.python is None:
            raise Untried("no interpreter with PyTorch is known; --python names one")
        return self.python

    def occupy(self, devices: Sequence[Device], process: ProcessIdentity) -> None:
        """Let fake devices be in use by a process; a GPU's driver sees that by itself."""
        if isinstance(self.provider, FakeDevices):
            self.provider.path.write_text(json.dumps({device.uuid: {"pid": process.pid} for device in devices}))

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
