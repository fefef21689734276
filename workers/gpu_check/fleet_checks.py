"""Checks of what only an agent does: leases by device, evictions, and a change of what is served.

They run one after another on one throw-away instance, which the first of them starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workers import processes
from workers.devices.fake import FakeDevices
from workers.devices.provider import Device
from workers.engines.errors import OutOfTime, TrialFailed
from workers.gpu_check.bench import POLL_SECONDS, RELEASE_SECONDS, Bench
from workers.gpu_check.device_checks import Passed
from workers.gpu_check.findings import Failed, Untried
from workers.gpu_check.steady_load import CLIENTS, SteadyLoad, steady_load
from workers.gpu_check.throwaway_instance import MODEL, OTHER, TENANT, ThrowawayInstance
from workers.processes import ProcessIdentity

#: A replacement beside what it replaces.
SLOTS = 2
#: As long as a tenant's requests may wait for a replica.
QUEUE_SECONDS = 3600
LEAST_CONTEXT_TOKENS = 256


def lease(bench: Bench) -> Passed:
    """An agent leases the slot of one device, and starts an engine on that device alone."""
    bench.engines()
    instance = bench.throwaway()
    devices = _devices(bench)
    began = time.monotonic()
    instance.start(_hearth_slots(bench, devices), _slots(bench, devices), faults=_faults(bench))
    started = time.monotonic() - began
    instance.call(f"/tenants/{TENANT}", {"queue_seconds": QUEUE_SECONDS}, method="PATCH")
    instance.scale(OTHER, 0, 0)
    instance.deploy()
    replica = instance.wait(lambda: instance.ready_replicas(MODEL), "a replica was ready")[0]
    engine = instance.engine(replica["id"])
    leased = [slot["device_uuid"] for slot in instance.listed("/fleet/slots") if slot["replica"] == replica["id"]]
    if leased != list(engine.devices):
        raise Failed(f"the replica leases {', '.join(leased)}, and its engine was started on {engine.devices}")
    used = _named(bench, leased)
    _expect_used_alone(bench, engine.process, used)
    instance.completion({"prompt": "Say something.", "max_tokens": 1}, instance.served.longest_start_seconds)
    figures = {
        "slots": instance.slots,
        "instance_start_seconds": round(started, 2),
        "replica_start_seconds": replica["startup_seconds"],
        "device": leased[0],
    }
    start = f"first token {replica['startup_seconds']:.1f} s after its start"
    return f"{leased[0]} of {instance.slots} slots, {start}, and the gateway's answer came from it", figures


def rollout(bench: Bench) -> Passed:
    """A change of an option replaces the replica while requests run, and so does its undo; no request fails."""
    instance = _running(bench)
    before = instance.ready_replicas(MODEL)[0]
    instance.call(f"/fleet/deployments/{MODEL}/rollout/policy", {"min_ready_seconds": 1})
    with steady_load(instance.completion, deadline=instance.deadline) as load:
        _wait_for_answers(instance, load)
        tokens = max(LEAST_CONTEXT_TOKENS, before["context_tokens"] // 2)
        there, seconds = _rolled(
            instance, lambda: instance.call(f"/models/{MODEL}", {"context_tokens": tokens}, method="PATCH")
        )
        after = instance.wait(lambda: _replaced(instance, before["id"]), "the new replica's engine said its context")
        _wait_for_answers(instance, load)
        back, undo_seconds = _rolled(
            instance, lambda: instance.call(f"/fleet/deployments/{MODEL}/rollout/undo", method="POST")
        )
        _wait_for_answers(instance, load)
    figures = {
        "slots": instance.slots,
        "rollout_seconds": round(seconds, 2),
        "undo_seconds": round(undo_seconds, 2),
        "requests": load.answered,
        "failed_requests": len(load.failures) + load.unfinished,
        "first_failure": load.failures[0] if load.failures else None,
    }
    if load.failures or load.unfinished:
        why = load.failures[0] if load.failures else "they were not answered in the end"
        raise Failed(f"{figures['failed_requests']} of {load.answered} requests failed: {why}", figures)
    if after["context_tokens"] != tokens:
        said = f"its engine takes {after['context_tokens']} tokens, not {tokens}"
        raise Failed(f"the replica that serves after the change is not of it: {said}", figures)
    if back["revision"] != there["earlier_revision"]:
        raise Failed(f"the undo led to {back['revision']}, not to {there['earlier_revision']}", figures)
    how = "" if instance.slots > 1 else "; with one slot they wait for the replacement"
    return f"{seconds:.1f} s, its undo {undo_seconds:.1f} s, none of {load.answered} requests failed{how}", figures


def eviction(bench: Bench) -> Passed:
    """An agent ends an engine, leases its device to a placeholder, and evicts that for another model's replica."""
    instance = _running(bench)
    engine = instance.engine(instance.ready_replicas(MODEL)[0]["id"])
    freed = _stopped(bench, instance, engine.process, _named(bench, engine.devices))
    placeholder = _warmed(instance)
    zygote = instance.zygote(placeholder["id"])
    held = _named(bench, zygote.devices)
    for device in held:
        if bench.kind == "GPU" and (why := bench.used_by(zygote.process, device)):
            raise Failed(f"{device.uuid} is in use before the placeholder is promoted: {why}")
    bench.occupy(held, zygote.process)
    evicted = _evicted(bench, instance, zygote.process, held)
    slots = {slot["device_uuid"]: slot["replica"] for slot in instance.listed("/fleet/slots")}
    ready = [replica["id"] for replica in instance.ready_replicas(OTHER)]
    figures = {
        "engine_freed_after_seconds": round(freed, 3),
        "placeholder_warm_up_seconds": placeholder["warm_seconds"],
        "eviction_seconds": round(evicted, 3),
        "device": zygote.devices[0],
    }
    if slots[zygote.devices[0]] not in ready:
        raise Failed(f"{zygote.devices[0]} is not leased to the replica that the placeholder gave way to", figures)
    for what, seconds in (("the engine ended", freed), ("the agent saw the eviction", evicted)):
        if seconds > RELEASE_SECONDS:
            raise Failed(f"the device was free {seconds:.1f} s after {what}", figures)
    return (
        f"the engine's device was free {freed:.2f} s after its end; a placeholder was evicted and its device free in "
        f"{evicted:.2f} s, and leased to another model"
    ), figures


def _running(bench: Bench) -> ThrowawayInstance:
    instance = bench.throwaway()
    if not instance.runs or not instance.ready_replicas(MODEL):
        raise Untried('it takes what "lease by an agent" starts')
    return instance


def _devices(bench: Bench) -> list[Device]:
    """Return the free devices that the instance may use. Raises Untried."""
    if len(bench.free) > 1:
        try:
            return bench.devices(SLOTS)
        except Untried:
            pass
    return bench.devices(1)


def _hearth_slots(bench: Bench, devices: Sequence[Device]) -> str:
    """Return HEARTH_SLOTS of an agent that shall offer these devices alone."""
    if bench.kind == "GPU":
        return ",".join(device.uuid for device in devices)
    if not isinstance(bench.provider, FakeDevices):
        return str(SLOTS)  # a CPU has as many shares as somebody wants
    path, own = bench.provider.path, {device.uuid for device in devices}
    faults = json.loads(path.read_text()) if path.exists() else {}
    others = [each.uuid for each in bench.provider.devices() if each.uuid not in own and not each.fault]
    path.write_text(json.dumps(faults | {uuid: faults.get(uuid, {}) | {"fault": "left alone"} for uuid in others}))
    return f"fake:{bench.provider.count}"


def _slots(bench: Bench, devices: Sequence[Device]) -> int:
    return SLOTS if bench.kind == "share of a CPU" else len(devices)


def _faults(bench: Bench) -> Path | None:
    return bench.provider.path if isinstance(bench.provider, FakeDevices) else None


def _named(bench: Bench, uuids: Sequence[str]) -> list[Device]:
    return [device for device in bench.provider.devices() if device.uuid in uuids]


def _expect_used_alone(bench: Bench, process: ProcessIdentity, used: Sequence[Device]) -> None:
    """Raise Failed unless the process uses these devices and no other that is free."""
    bench.occupy(used, process)
    if bench.kind == "share of a CPU":
        return
    bench.wait_until_used(used)
    for other in bench.free:
        if other not in used and (why := bench.used_by(process, other)):
            raise Failed(f"the engine of {used[0].uuid} uses {other.uuid}, too: {why}")


def _wait_for_answers(instance: ThrowawayInstance, load: SteadyLoad) -> None:
    """Return once every client has had some more answers, so that whatever serves now has answered them."""
    goal = load.answered + 3 * CLIENTS
    instance.wait(lambda: load.answered >= goal, "requests were answered")


def _rolled(instance: ThrowawayInstance, begin: Callable[[], object]) -> tuple[Any, float]:
    """Begin a rollout; return it once it is done, and after how many seconds. Raises Failed."""
    known = {row["id"] for row in instance.listed("/fleet/rollouts")}
    began = time.monotonic()
    begin()

    def finished() -> Any:
        rows = [row for row in instance.listed("/fleet/rollouts") if row["id"] not in known]
        return next((row for row in rows if row["finished_at"]), None)

    row = instance.wait(finished, "a rollout had ended")
    if row["state"] != "done":
        raise Failed(f"the rollout is {row['state']}: {row['reason']}")
    return row, time.monotonic() - began


def _replaced(instance: ThrowawayInstance, before: str) -> Any:
    """Return the ready replica that is not this one, once the agent has read its engine's context; None until then."""
    ready = instance.ready_replicas(MODEL)
    return next((each for each in ready if each["id"] != before and each["context_tokens"] is not None), None)


def _stopped(bench: Bench, instance: ThrowawayInstance, engine: ProcessIdentity, devices: Sequence[Device]) -> float:
    """Let the agent stop the engine; return after how many seconds without it its devices were free."""
    bench.occupy(devices, engine)
    instance.scale(MODEL, 0, 0)
    _wait_until_gone(instance, engine)
    freed = bench.wait_until_free(devices)
    instance.wait(lambda: not instance.deployment(MODEL)["replicas"], "a replica's lease had ended")
    return freed


def _warmed(instance: ThrowawayInstance) -> Any:
    """Return a placeholder of the model under test, once its process has imported the engine. Raises TrialFailed."""
    instance.scale(MODEL, 0, 1)  # placeholders are for models that may have replicas
    (pool,) = instance.deployment(MODEL)["pools"]
    instance.call(f"/fleet/pools/{pool}/warm", {"placeholders_per_node": 1, "level": "h2"})

    def warm() -> Any:
        return next((row for row in instance.listed("/fleet/placeholders") if row["state"] == "warm"), None)

    found = instance.wait(warm, "a placeholder was warm")
    if found["level"] != "h2" or found["deployment"] != MODEL:
        raise TrialFailed(
            f"A placeholder of {found['deployment']} has no process that may be promoted.", found["reason"]
        )
    return found


def _evicted(bench: Bench, instance: ThrowawayInstance, zygote: ProcessIdentity, devices: Sequence[Device]) -> float:
    """Let replicas of the other model take every slot.

    Return the seconds from when the agent saw that the placeholder gives way until its device was free.
    """
    name = "hearth_placeholder_evict_seconds"
    seen, spent = (instance.agent_metric(f"{name}_{each}") for each in ("count", "sum"))
    instance.scale(OTHER, instance.slots, instance.slots)
    _wait_until_gone(instance, zygote)
    freed = bench.wait_until_free(devices)
    instance.wait(lambda: len(instance.ready_replicas(OTHER)) == instance.slots, "replicas had every slot")
    if instance.agent_metric(f"{name}_count") != seen + 1:
        raise Failed("the agent counts no eviction")
    return instance.agent_metric(f"{name}_sum") - spent + freed


def _wait_until_gone(instance: ThrowawayInstance, process: ProcessIdentity) -> None:
    """Return once no process of a session is left: soon, because what follows is measured from here."""
    ends = time.monotonic() + instance.served.longest_start_seconds
    while processes.session_members(process):
        if time.monotonic() > instance.deadline:
            raise OutOfTime("the agent had ended a process")
        if time.monotonic() > ends:
            raise Failed(f"the agent has not ended process {process.pid}")
        time.sleep(POLL_SECONDS)
