"""Checks of the devices themselves, which need no engine: NVML, and PyTorch for those that use a device."""

from __future__ import annotations

import time
from typing import Any

from workers import processes
from workers.gpu_check import torch_client
from workers.gpu_check.bench import RELEASE_SECONDS, Bench
from workers.gpu_check.findings import Failed, Figures, Untried

Passed = tuple[str, Figures]


def devices(bench: Bench) -> Passed:
    """Every slot has a device of its own that works, and says what it does now."""
    found = bench.provider.devices()
    if bench.kind == "share of a CPU":
        raise Untried("this machine has no GPU that NVML shows; the checks below run on the CPU")
    figures: dict[str, float | int | str | None] = {}
    for device in found:
        reading = bench.provider.reading(device.uuid)
        figures[device.uuid] = (
            f"{_gib(device.memory_bytes)} of memory, {_gib(reading.used_bytes)} in use, "
            f"{_known(reading.utilisation_percent, '%')} busy, {_known(reading.temperature_celsius, '°C')}, "
            f"{_known(reading.power_watts, 'W')}, Xid events {_supported(reading.reports_xid)}"
        )
    if len({device.uuid for device in found}) < len(found):
        raise Failed("two devices have the same UUID", figures)
    if faults := [f"{device.uuid}: {device.fault}" for device in found if device.fault]:
        raise Failed("; ".join(faults), figures)
    return f"{len(found)} with a UUID each, none with a fault", figures


def free_devices(bench: Bench) -> Passed:
    """Find the devices that nobody uses: the following checks use these alone."""
    busy = []
    for device in bench.provider.devices():
        why = device.fault or bench.holder(device)
        if why:
            busy.append(f"{device.uuid} ({why})")
        else:
            bench.free.append(device)
    if not bench.free:
        raise Untried(f"none of them is free: {'; '.join(busy)}")
    return f"{len(bench.free)} free" + (f", left alone: {'; '.join(busy)}" if busy else ""), {}


def memory_is_freed(bench: Bench) -> Passed:
    """Kill a process that holds memory of a device, as an evicted placeholder is killed; the device is free soon."""
    if bench.kind == "share of a CPU":
        raise Untried("a CPU has no memory of its own to free")
    device = bench.device()
    arguments = ("hold", "--bytes", str(bench.hold_bytes), "--device", *(bench.names(device) or ("",)))
    with torch_client.started(bench.interpreter(), *arguments) as holder:
        _expect_cuda(bench, holder.line("imported"))
        holder.line("holds")
        bench.occupy([device], holder.identity)
        bench.wait_until_used([device])
        began = time.monotonic()
        if not processes.kill_session(holder.identity, timeout_seconds=RELEASE_SECONDS):
            raise Failed("the process outlived SIGKILL")
        bench.wait_until_free([device])
        seconds = time.monotonic() - began
    figures = {"held_bytes": bench.hold_bytes, "freed_after_seconds": round(seconds, 3)}
    text = f"{bench.hold_bytes >> 20:,} MiB were free {seconds:.2f} s after the process was killed"
    if seconds > RELEASE_SECONDS:
        raise Failed(text, figures)
    return text, figures


def torch_zygote(bench: Bench) -> Passed:
    """A process imports PyTorch and opens no device; its child opens the one that it is promoted to."""
    device = bench.device()
    names = bench.names(device) or ("",)
    held = bench.hold_bytes if bench.kind == "GPU" else 0
    with torch_client.started(bench.interpreter(), "zygote", "--bytes", str(held)) as zygote:
        imported = zygote.line("imported")
        _expect_cuda(bench, imported)
        if imported["threads"] != 1:
            raise Failed(f"the import left {imported['threads']} threads, of which a fork copies one")
        if bench.kind == "GPU" and (why := bench.used_by(zygote.identity, device)):
            raise Failed(f"{device.uuid} is in use after the import alone: {why}")
        began = time.monotonic()
        zygote.say(names[0])
        if zygote.line("promoted")["opened"]:
            raise Failed("CUDA was open before the fork")
        computed = zygote.line("computed")
        promotion = computed["at"] - began
        zygote.line("holds")
        if bench.kind == "GPU":
            bench.wait_until_used([device])
    if not computed["correct"]:
        raise Failed("the forked process computed a wrong result")
    cold = _cold(bench, names[0])
    figures = {"promotion_seconds": round(promotion, 3), "cold_seconds": round(cold, 3), "torch": imported["version"]}
    text = f"promoted to a first result in {promotion:.2f} s, from nothing in {cold:.2f} s, on {computed['name']}"
    if bench.kind != "GPU":
        raise Untried(f"there is no GPU to open after the fork; {text}")
    return text, figures


def _cold(bench: Bench, device: str) -> float:
    """Return after how many seconds a new process had computed the same."""
    began = time.monotonic()
    with torch_client.started(bench.interpreter(), "plain", "--device", device) as plain:
        plain.line("imported")
        return float(plain.line("computed")["at"]) - began


def _expect_cuda(bench: Bench, imported: dict[str, Any]) -> None:
    """Raise Untried for a GPU that this PyTorch cannot use."""
    if bench.kind == "GPU" and not imported["cuda"]:
        raise Untried(f"PyTorch {imported['version']} of {bench.python} is built without CUDA; --python names another")


def _gib(count: int | None) -> str:
    return "an unknown amount" if count is None else f"{count / 2**30:.1f} GiB"


def _known(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.0f} {unit}"


def _supported(value: bool | None) -> str:
    return "unknown" if value is None else "supported" if value else "not supported"
