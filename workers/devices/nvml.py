"""NVIDIA GPUs through NVML, by UUID. Without a driver there are no GPUs.

NVML numbers devices again at each start of the driver, so only the UUID identifies one; and it shows every GPU of the
machine, whatever the value of CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

from workers.devices.errors import DevicesUnreadable
from workers.devices.provider import Device, Reading
from workers.devices.xid_events import XidEvents

#: Memory that a driver may use on an idle GPU, in addition to what NVML reports as reserved.
IDLE_BYTES = 512 * 2**20
_NO_DRIVER = (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded, pynvml.NVMLError_NoPermission)


def find() -> Gpus | None:
    """Return the machine's GPUs; None if there is no driver or no GPU. Raises DevicesUnreadable."""
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except _NO_DRIVER:
        return None
    except pynvml.NVMLError as error:
        raise DevicesUnreadable("NVML", str(error)) from error
    return Gpus() if count else None


@dataclass(frozen=True, slots=True)
class Gpus:
    """Every GPU of this machine. NVML stays initialised for the life of the process."""

    _xids: XidEvents = field(default_factory=XidEvents, compare=False)

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs in NVML's order, without those that have fallen off the bus. Raises DevicesUnreadable."""
        found = []
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                with contextlib.suppress(pynvml.NVMLError_GpuIsLost):
                    found.append(_device(index))
        except pynvml.NVMLError as error:
            raise DevicesUnreadable("NVML", str(error)) from error
        return tuple(found)

    def in_use(self, uuid: str) -> str:
        """Return which processes use the GPU, or how much memory is not released yet; empty once it is free."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            used = _used_bytes(handle)
        except pynvml.NVMLError as error:
            return f"NVML cannot read whether it is free: {error}"
        if processes:
            return f"processes {', '.join(str(process.pid) for process in processes)} use it"
        # In a container NVML shows the memory of other containers' processes, but not the processes.
        return f"{used / 2**20:.0f} MiB of its memory are in use" if used > IDLE_BYTES else ""

    def reading(self, uuid: str) -> Reading:
        """Return what the GPU does now. Raises DevicesUnreadable."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            milliwatts = optional(pynvml.nvmlDeviceGetPowerUsage, handle)
            rows = optional(pynvml.nvmlDeviceGetRemappedRows, handle)
            reports_xid = _reports_xid(handle)
            xids = self._xids.of(uuid, handle) if reports_xid else None
            return Reading(
                used_bytes=_used_bytes(handle),
                utilisation_percent=getattr(optional(pynvml.nvmlDeviceGetUtilizationRates, handle), "gpu", None),
                temperature_celsius=optional(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
                power_watts=None if milliwatts is None else milliwatts / 1000,
                pids=tuple(int(process.pid) for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
                reports_xid=reports_xid,
                xid_errors=None if xids is None else xids.count,
                last_xid=None if xids is None else xids.last,
                corrected_ecc_errors=_ecc_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
                uncorrected_ecc_errors=_ecc_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
                remapped_rows=None if rows is None else rows[0] + rows[1],
            )
        except pynvml.NVMLError as error:
            raise DevicesUnreadable("NVML", str(error)) from error


def optional(query: Callable[..., Any], *arguments: Any) -> Any:
    """Return what NVML answers, None if it does not: the GPU has no such reading, or not for a guest or container."""
    try:
        return query(*arguments)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission, pynvml.NVMLError_Unknown):
        return None


def _device(index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Device(
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        index=index,
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        fault=_fault(handle),
    )


def _fault(handle: Any) -> str:
    """Return the fault that NVML reports for the GPU. Consumer GPUs support neither query, which is not a fault."""
    try:
        errors = pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        )
        if errors:
            return f"{errors} uncorrected ECC errors since the driver started"
    except pynvml.NVMLError_NotSupported:
        pass
    try:
        _, _, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
        if failed:
            return "a memory row could not be remapped: the GPU must be replaced"
        if pending:
            return "a memory row waits to be remapped: the GPU must be reset"
    except pynvml.NVMLError_NotSupported:
        pass
    return ""


def _ecc_errors(handle: Any, kind: int) -> int | None:
    errors = optional(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)
    return None if errors is None else int(errors)


def _used_bytes(handle: Any) -> int:
    """Return the memory that processes use; the driver's own reserve is included only if NVML cannot exclude it."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)
    except pynvml.NVMLError:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _reports_xid(handle: Any) -> bool:
    types = optional(pynvml.nvmlDeviceGetSupportedEventTypes, handle)
    return bool((types or 0) & pynvml.nvmlEventTypeXidCriticalError)
