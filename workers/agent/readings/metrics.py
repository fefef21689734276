"""What an agent measures of its node, for Prometheus: devices, and the engines on them. No label names a tenant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from workers.agent.readings.node_readings import EngineUsage, EngineView, NodeReadings
from workers.devices.provider import Device, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMeasurements:
    """The last readings of one node, and its engines."""

    node: str
    readings: NodeReadings
    engines: Sequence[EngineView]


_DEVICE = ("node", "device", "index")
_REPLICA = ("node", "deployment", "replica")
#: Name, help, and the value of each gauge of a device; None where the device does not say.
_DEVICE_GAUGES: tuple[tuple[str, str, Callable[[Device, Reading], float | None]], ...] = (
    (
        "hearth_device_utilisation_ratio",
        "Share of the last second in which the device computed.",
        lambda _, reading: None if reading.utilisation_percent is None else reading.utilisation_percent / 100,
    ),
    ("hearth_device_memory_used_bytes", "Memory in use.", lambda _, reading: reading.used_bytes),
    ("hearth_device_memory_bytes", "Memory of the device.", lambda device, _: device.memory_bytes),
    ("hearth_device_temperature_celsius", "Temperature.", lambda _, reading: reading.temperature_celsius),
    ("hearth_device_power_watts", "Power.", lambda _, reading: reading.power_watts),
    ("hearth_device_last_xid", "Number of the last Xid error.", lambda _, reading: reading.last_xid),
    ("hearth_device_remapped_rows", "Rows of its memory replaced by spare ones.", lambda _, r: r.remapped_rows),
    ("hearth_device_faulty", "1 while the device reports a fault.", lambda device, _: float(bool(device.fault))),
)
#: The same of an engine, from its last probe and from its processes.
_REPLICA_GAUGES: tuple[tuple[str, str, Callable[[EngineView, EngineUsage | None], float | None]], ...] = (
    ("hearth_replica_running_requests", "Requests that it runs.", lambda e, _: e.load.running if e.load else None),
    ("hearth_replica_waiting_requests", "Requests that wait in it.", lambda e, _: e.load.waiting if e.load else None),
    ("hearth_replica_kv_usage_ratio", "Used share of its KV cache.", lambda e, _: e.load.kv_usage if e.load else None),
    (
        "hearth_replica_resident_bytes",
        "Host memory of its processes.",
        lambda _, used: used.resident_bytes if used else None,
    ),
)


class NodeCollector(Collector):
    """The devices and engines of the agents of this process."""

    def __init__(self, read: Callable[[], Sequence[NodeMeasurements]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield what was measured in the last minute."""
        nodes = self._read()
        yield from _devices(nodes)
        yield from _replicas(nodes)


def _devices(nodes: Sequence[NodeMeasurements]) -> Iterator[Metric]:
    read = [
        ((node.node, each.device.uuid, str(each.device.index)), each)
        for node in nodes
        for each in node.readings.current
    ]
    for name, text, value_of in _DEVICE_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_DEVICE)
        for labels, each in read:
            _add(gauge, labels, value_of(each.device, each.reading))
        yield gauge
    age = GaugeMetricFamily("hearth_device_reading_age_seconds", "Time since the device was read.", labels=_DEVICE)
    for node in nodes:
        for each in node.readings.devices.values():  # those that are too old, too
            age.add_metric((node.node, each.device.uuid, str(each.device.index)), each.age_seconds)
    yield age
    xids = CounterMetricFamily(
        "hearth_device_xid_errors", "Xid errors that the driver reported while this agent ran.", labels=_DEVICE
    )
    ecc = CounterMetricFamily(
        "hearth_device_ecc_errors", "ECC errors of its memory since the driver started.", labels=(*_DEVICE, "kind")
    )
    for labels, each in read:
        _add(xids, labels, each.reading.xid_errors)
        _add(ecc, (*labels, "corrected"), each.reading.corrected_ecc_errors)
        _add(ecc, (*labels, "uncorrected"), each.reading.uncorrected_ecc_errors)
    yield xids
    yield ecc


def _replicas(nodes: Sequence[NodeMeasurements]) -> Iterator[Metric]:
    engines = [
        ((node.node, each.deployment, str(each.replica_id)), each, node.readings.usage.get(each.replica_id))
        for node in nodes
        for each in node.engines
    ]
    for name, text, value_of in _REPLICA_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_REPLICA)
        for labels, engine, usage in engines:
            _add(gauge, labels, value_of(engine, usage))
        yield gauge
    held = GaugeMetricFamily("hearth_replica_devices", "1 for each device of it.", labels=(*_REPLICA, "device"))
    cpu = CounterMetricFamily("hearth_replica_cpu_seconds", "CPU time of its processes.", labels=_REPLICA)
    for labels, engine, usage in engines:
        for device in engine.devices:
            held.add_metric((*labels, device), 1)
        _add(cpu, labels, usage.cpu_seconds if usage else None)
    yield held
    yield cpu


def _add(family: GaugeMetricFamily | CounterMetricFamily, labels: Sequence[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)
