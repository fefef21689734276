"""What ``celery -A hearth fleet …`` lists: the lines of each list, and how its table looks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hearth.cli.text_table import mebibytes, span, table
from workers.fleet import history, inventory
from workers.fleet.inventory import PlaceholderLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One answer: for people and for programs. ``well`` is False when somebody should look."""

    text: str
    data: object
    well: bool = True


def pools(last: int) -> Listing:
    """List pools in the order in which they are filled."""
    lines = inventory.pools()
    headings = ("POOL", "KIND", "REGION", "PRIORITY", "NODES", "SLOTS", "FREE", "REPLICAS", "WARM", "LEVEL", "WATER")
    return _listing(
        lines,
        headings,
        lambda line: (
            line.pool,
            line.kind,
            line.region,
            str(line.priority),
            f"{line.alive}/{line.nodes}",
            str(line.slots),
            str(line.free),
            str(line.replicas),
            f"{line.placeholders}/{line.placeholders_wanted}",
            line.level,
            f"{line.low_water:g}-{line.high_water:g}",
        ),
    )


def nodes(last: int) -> Listing:
    """List nodes."""
    lines = inventory.nodes()
    headings = ("NODE", "POOL", "ADDRESS", "STATE", "SLOTS", "FREE", "QUARANTINED", "REPLICAS", "WARM")
    return _listing(
        lines,
        headings,
        lambda line: (
            line.node,
            line.pool,
            line.address,
            ("alive" if line.alive else "silent") + (",cordoned" if line.cordoned else ""),
            str(line.slots),
            str(line.free),
            str(line.quarantined),
            str(line.replicas),
            str(line.placeholders),
        ),
    )


def slots(last: int) -> Listing:
    """List slots."""
    lines = inventory.slots()
    return _listing(
        lines,
        ("NODE", "DEVICE", "HEALTH", "MEMORY", "HOLDER", "FAULT"),
        lambda line: (line.node, line.device, line.health, mebibytes(line.memory_bytes), line.holder, line.fault),
    )


def replicas(last: int) -> Listing:
    """List replicas."""
    lines = inventory.replicas()
    headings = ("REPLICA", "NODE", "STATE", "FOR", "WANTED", "PORT", "STARTED", "TOOK", "RUNNING", "WAITING", "NOTE")
    return _listing(
        lines,
        headings,
        lambda line: (
            line.replica,
            line.node,
            line.state,
            span(line.seconds),
            "leaving" if line.leaving and line.wanted else "yes" if line.wanted else "no",
            str(line.port or ""),
            line.start_level,
            span(line.startup_seconds),
            str(line.running_requests),
            str(line.waiting_requests),
            line.last_error or line.start_note,
        ),
    )


def placeholders(last: int) -> Listing:
    """List placeholders."""
    lines = inventory.placeholders()
    headings = ("PLACEHOLDER", "NODE", "STATE", "FOR", "LEVEL", "ENGINE", "MEMORY", "PROMOTES", "REASON")
    return _listing(
        lines,
        headings,
        lambda line: (
            line.placeholder,
            line.node,
            line.state,
            span(line.seconds),
            line.level if line.level == line.target_level else f"{line.level}<{line.target_level}",
            line.engine,
            mebibytes(line.memory_bytes),
            _promises(line),
            line.reason,
        ),
    )


def deployments(last: int) -> Listing:
    """List deployments."""
    lines = inventory.deployments()
    headings = ("DEPLOYMENT", "MODEL", "ENGINE", "READY", "DESIRED", "RANGE", "TOKENS", "SLOTS", "POOLS")
    return _listing(
        lines,
        headings,
        lambda line: (
            line.deployment,
            line.model,
            line.engine,
            str(line.ready),
            str(line.desired),
            f"{line.minimum}-{line.maximum}",
            str(line.target_tokens_per_replica),
            str(line.slots_per_replica),
            ",".join(line.pools),
        ),
    )


def decisions(last: int) -> Listing:
    """List the last decisions of scaling, newest first."""
    lines = history.decisions(last)
    return _listing(
        lines,
        ("AT", "DEPLOYMENT", "ACTION", "REPLICAS", "POOL", "REASON"),
        lambda line: (
            _moment(line.at),
            line.deployment,
            line.action,
            f"{line.from_replicas}>{line.to_replicas}",
            line.pool,
            line.reason,
        ),
    )


def events(last: int) -> Listing:
    """List the last transitions of replicas, newest first."""
    lines = history.events(last)
    return _listing(
        lines,
        ("AT", "REPLICA", "NODE", "FROM", "TO", "REASON"),
        lambda line: (_moment(line.at), line.replica, line.node, line.from_state, line.to_state, line.reason),
    )


def starts(last: int) -> Listing:
    """List how long starts took, by deployment and level."""
    lines = history.starts()
    return _listing(
        lines,
        ("DEPLOYMENT", "MODEL", "FROM", "STARTS", "MEDIAN", "P95"),
        lambda line: (
            line.deployment,
            line.model,
            line.level,
            str(line.count),
            span(line.median_seconds),
            span(line.p95_seconds),
        ),
    )


def status(last: int) -> Listing:
    """Say in short what there is and what is not well."""
    troubles = _troubles()
    parts = [nodes(last), deployments(last), placeholders(last)]
    verdict = "\n".join(troubles) if troubles else "All is well."
    data = {
        "well": not troubles,
        "troubles": troubles,
        "nodes": parts[0].data,
        "deployments": parts[1].data,
        "placeholders": parts[2].data,
    }
    return Listing(text="\n\n".join([*(part.text for part in parts), verdict]), data=data, well=not troubles)


LISTS: dict[str, Callable[[int], Listing]] = {
    "status": status,
    "pools": pools,
    "nodes": nodes,
    "slots": slots,
    "replicas": replicas,
    "placeholders": placeholders,
    "deployments": deployments,
    "decisions": decisions,
    "events": events,
    "starts": starts,
}


def _listing(lines: Sequence[Any], headings: Sequence[str], cells: Callable[[Any], Sequence[str]]) -> Listing:
    text = table(headings, [cells(line) for line in lines])
    return Listing(text=text, data=[asdict(line) for line in lines])


def _troubles() -> list[str]:
    """Return what an operator should look at, in sentences."""
    silent = [f"Node {line.node} is silent." for line in inventory.nodes() if not line.alive]
    short = [
        f"Deployment {line.deployment} has {line.ready} of {line.desired} replicas ready."
        for line in inventory.deployments()
        if line.ready < line.desired
    ]
    faulty = [
        f"Slot {line.device} of node {line.node} is quarantined: {line.fault or 'no reason given'}."
        for line in inventory.slots()
        if line.health == "quarantined"
    ]
    return [*silent, *short, *faulty]


def _promises(line: PlaceholderLine) -> str:
    if line.state != "warm":
        return ""
    return "; ".join(f"{promise.deployment} {promise.words}" for promise in line.promotes)


def _moment(at: dt.datetime) -> str:
    return at.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
