"""The fleet as lists of flat JSON objects: what ``celery fleet --json`` and ``celery inspect`` write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import msgspec

from workers.devices.gpu_report import GpuReport
from workers.fleet.lookup import short
from workers.fleet.pools import dollars
from workers.fleet.scrape_targets import ScrapeTarget
from workers.fleet.status.certificate_status import CertificateStatus
from workers.fleet.status.inventory import Fleet
from workers.fleet.status.rollout_status import RolloutStatus
from workers.fleet.status.staged import StagedStatus
from workers.models import Slot
from workers.serving import start_times
from workers.serving.placeholder_costs import PlaceholderCost

Row = dict[str, Any]
#: What is shown of a device's reading.
READINGS = (
    "used_bytes",
    "utilisation_percent",
    "temperature_celsius",
    "power_watts",
    "xid_errors",
    "last_xid",
    "corrected_ecc_errors",
    "uncorrected_ecc_errors",
    "remapped_rows",
)


def pools(fleet: Fleet) -> list[Row]:
    """Return the pools in the order in which they are filled. ``slots`` counts healthy ones, ``placeholders`` warm."""
    by_node = nodes(fleet)
    return [
        {
            "pool": pool.name,
            "kind": pool.kind,
            "region": pool.region,
            "priority": pool.priority,
            "nodes": len(pool.nodes),
            "alive": sum(node.alive for node in pool.nodes),
            **{
                name: sum(row[name] for row in by_node if row["pool"] == pool.name)
                for name in ("slots", "free", "replicas", "placeholders")
            },
            "placeholders_wanted": pool.placeholders_wanted,
            "level": pool.placeholder_level,
            "high_water": pool.high_water,
            "low_water": pool.low_water,
            "staged_share": pool.staged_share,
            "gpu_type": pool.gpu_type,
            "labels": dict(pool.labels),
            "slot_hour_usd": dollars(pool.slot_hour_pico),
            "hour_usd": dollars(pool.hour_pico),
        }
        for pool in fleet.pools
    ]


def nodes(fleet: Fleet) -> list[Row]:
    """Return the nodes by name. ``slots`` counts healthy ones, ``placeholders`` warm ones."""
    return [
        {
            "node": node.name,
            "pool": node.pool,
            "address": node.address,
            "alive": node.alive,
            "cordoned": node.cordoned,
            "slots": node.health_count(Slot.Health.OK),
            "free": node.free_count,
            "quarantined": node.health_count(Slot.Health.QUARANTINED),
            "replicas": sum(replica.running for replica in fleet.replicas if replica.node == node.name),
            "placeholders": node.warm_count,
            "engines": list(node.engines),
            "gpu_check": _gpu_check(node.gpu_check),
            "promotion_obstacles": list(node.promotion_obstacles),
            "certificate_expires_at": _expiry(node.certificate),
            "certificate_problem": node.certificate.problem if node.certificate else "",
        }
        for node in fleet.nodes
    ]


def slots(fleet: Fleet) -> list[Row]:
    """Return the slots by node and index. ``holder`` is ``replica chat/1a2b3c``, ``placeholder 1a2b3c`` or empty.

    What the device does is None where it does not say, or where it was not read in the last minute.
    """
    found = [(node, group, slot) for node in fleet.nodes for group in node.slot_groups for slot in group.slots]
    return [
        {
            "node": node.name,
            "device": slot.device_uuid,
            "index": slot.index,
            "health": slot.health,
            "fault": slot.fault,
            "holder": group.holder,
            "memory_bytes": slot.memory_bytes,
            "read_at": None if slot.read_at is None else slot.read_at.isoformat(),
            **{name: getattr(slot.reading, name, None) for name in READINGS},
        }
        for node, group, slot in sorted(found, key=lambda each: (each[0].name, each[2].index))
    ]


def replicas(fleet: Fleet) -> list[Row]:
    """Return the replicas, oldest first. ``seconds`` is the time in the state."""
    copied = (
        "state",
        "wanted",
        "leaving",
        "generation",
        "port",
        "start_level",
        "start_note",
        "startup_seconds",
        "running_requests",
        "waiting_requests",
        "kv_usage",
        "ttft_seconds",
        "tpot_seconds",
        "prefix_hit_share",
        "cache_tokens",
        "host_cache_tokens",
        "max_requests",
        "context_tokens",
        "last_error",
    )
    return [
        {
            "id": str(replica.id),
            "replica": replica.name,
            "deployment": replica.deployment,
            "node": replica.node or "",
            "seconds": replica.state_seconds,
            **{name: getattr(replica, name) for name in copied},
            "start_parts": asdict(replica.start_parts),
        }
        for replica in fleet.replicas
    ]


def placeholders(fleet: Fleet) -> list[Row]:
    """Return the placeholders by node, oldest first. ``promotes`` lists what each can serve, and how soon."""
    copied = ("node", "state", "level", "target_level", "engine", "memory_bytes", "warm_seconds", "reason")
    return [
        {
            "id": str(placeholder.id),
            "placeholder": short(placeholder.id),
            "seconds": placeholder.state_seconds,
            "warmed_for": placeholder.deployment or "",
            **{name: getattr(placeholder, name) for name in copied},
            "promotes": [
                {
                    "deployment": each.deployment,
                    "seconds": each.seconds,
                    "words": start_times.start_time_text(each.seconds),
                }
                for each in placeholder.estimates
            ],
        }
        for placeholder in sorted(fleet.placeholders, key=lambda each: each.node)
    ]


def deployments(fleet: Fleet) -> list[Row]:
    """Return the deployments by name. ``replicas`` counts those that are wanted and have not ended."""
    copied = (
        "model",
        "engine",
        "engine_version",
        "minimum",
        "maximum",
        "desired",
        "ready",
        "slots_per_replica",
        "without_slot",
    )
    return [
        {
            "deployment": deployment.name,
            **{name: getattr(deployment, name) for name in copied},
            "replicas": sum(replica.wanted and replica.running for replica in deployment.replicas),
            "pools": list(deployment.pools),
            "objectives": str(deployment.objectives),
            "requires": str(deployment.requires),
            "left_out": list(deployment.left_out),
            "hour_usd": dollars(deployment.hour_pico),
            "target_tokens_per_replica": deployment.target_tokens_per_replica,
            "target": deployment.target_words,
            "routing": str(deployment.routing),
            "rollout": deployment.rollout.words if deployment.rollout else "",
        }
        for deployment in fleet.deployments
    ]


def targets(fleet: Fleet) -> list[Row]:
    """Return what one replica should have in flight, by deployment and pool, and what that was learned from."""
    return [
        {
            "deployment": deployment.name,
            **{name: getattr(each, name) for name in ("pool", "tokens", "origin", "reason", "measured_at")},
            "points": msgspec.to_builtins(each.points),
        }
        for deployment in fleet.deployments
        for each in deployment.targets
    ]


def weights(fleet: Fleet) -> list[Row]:
    """Return the files of models that nodes have or fetch, by deployment and node. ``words`` says how far they are."""
    copied = ("model", "node", "state", "bytes_done", "bytes_total", "attempts", "folder", "error", "retry_seconds")
    return [
        {
            "deployment": deployment.name,
            **{name: getattr(each, name) for name in copied},
            "words": each.words,
        }
        for deployment in fleet.deployments
        for each in deployment.weights
    ]


def placeholder_costs(costs: Iterable[PlaceholderCost]) -> list[Row]:
    """Return what placeholders cost and saved, by day and pool. ``cost_usd`` is empty if it is not set."""
    return [
        {
            "day": each.day.isoformat(),
            "pool": each.pool,
            "slot_hours": round(each.slot_hours, 6),
            "waited_hours": round(each.waited_hours, 6),
            "memory_gib_hours": round(each.memory_gib_hours, 6),
            "promotions": each.promotions,
            "unmeasured": each.unmeasured,
            "saved_seconds": round(each.saved_seconds, 3),
            "cost_usd": dollars(each.cost_pico),
        }
        for each in costs
    ]


def staged(statuses: Iterable[StagedStatus]) -> list[Row]:
    """Return the files that nodes keep in the page cache, by node, most recently wanted first."""
    return [{**asdict(each), "wanted_at": each.wanted_at.isoformat() if each.wanted_at else ""} for each in statuses]


def rollouts(statuses: Iterable[RolloutStatus]) -> list[Row]:
    """Return rollouts. ``new`` and ``old`` count wanted replicas, ``words`` says how far it is."""
    counts = ("new", "new_ready", "old", "old_ready")
    told = ("reason", "waits_for", "started_by", "started_at", "finished_at", "words")
    versions = ("revision", "earlier_revision", "engine_version", "earlier_engine_version")
    copied = ("id", "deployment", "state", *versions, *counts, *told)
    return [
        {
            **{name: getattr(each, name) for name in copied},
            "canaries": dict(each.canaries),
            **{name: getattr(each.traffic, name) for name in ("requests", "failures", "slow")},
        }
        for each in statuses
    ]


def scrape_targets(targets: Iterable[ScrapeTarget]) -> list[Row]:
    """Return what Prometheus scrapes. ``path`` is where the metrics are."""
    labels = ("role", "node", "pool", "deployment", "model", "replica")
    return [
        {
            "address": each.address,
            **{name: each.labels.get(name, "") for name in labels},
            "path": each.labels.get("__metrics_path__", "/metrics"),
        }
        for each in targets
    ]


def starts(fleet: Fleet) -> list[Row]:
    """Return the newest starts of each deployment's revision by level, coldest first, up to the first canary token."""
    return [
        {
            "deployment": deployment.name,
            "model": deployment.model,
            "level": summary.level,
            "count": summary.count,
            "median_seconds": summary.median_seconds,
            "p95_seconds": summary.p95_seconds,
            "parts": asdict(summary.parts),
        }
        for deployment in fleet.deployments
        for summary in deployment.starts
    ]


def _gpu_check(report: GpuReport | None) -> Row | None:
    if report is None:
        return None
    row: Row = msgspec.json.decode(msgspec.json.encode(report))
    del row["ended"]  # nodes send reports of runs that have ended
    return row | {"counts": report.counts}


def _expiry(certificate: CertificateStatus | None) -> str | None:
    if certificate is None or certificate.expires_at is None:
        return None
    return certificate.expires_at.isoformat()
