"""The lists of ``celery -A hearth fleet …``: the rows of each as JSON, and its table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from hearth.cli.output.text_table import duration, gigabytes, mebibytes, table
from workers.fleet import scrape_targets
from workers.fleet.status import history, inventory, json_rows, rollout_status, staged
from workers.fleet.status.inventory import Fleet
from workers.fleet.status.json_rows import Row
from workers.serving import placeholder_costs

#: A cell: the name of a value of the row, a format of several, or a function of the row.
Cell = str | Callable[[Row], str]

COLUMNS: dict[str, dict[str, Cell]] = {
    "pools": {
        "POOL": "pool",
        "KIND": "kind",
        "REGION": "region",
        "PRIORITY": "priority",
        "NODES": "{alive}/{nodes}",
        "SLOTS": "slots",
        "FREE": "free",
        "REPLICAS": "replicas",
        "WARM": "{placeholders}/{placeholders_wanted}",
        "LEVEL": "level",
        "WATER": "{low_water:g}-{high_water:g}",
        "GPU": "gpu_type",
        "LABELS": lambda row: ",".join(f"{name}:{value}" for name, value in sorted(row["labels"].items())),
        "$/SLOT HOUR": "slot_hour_usd",
    },
    "nodes": {
        "NODE": "node",
        "POOL": "pool",
        "ADDRESS": "address",
        "STATE": lambda row: ("alive" if row["alive"] else "silent") + (",cordoned" if row["cordoned"] else ""),
        "SLOTS": "slots",
        "FREE": "free",
        "QUARANTINED": "quarantined",
        "REPLICAS": "replicas",
        "WARM": "placeholders",
        "ENGINES": lambda row: ", ".join(row["engines"]),
        "GPU-CHECK": lambda row: f"{check['counts']} {check['made_at'][:10]}" if (check := row["gpu_check"]) else "",
        "CERTIFICATE": lambda row: (row["certificate_expires_at"] or "")[:16].replace("T", " "),
    },
    "slots": {
        "NODE": "node",
        "DEVICE": "device",
        "HEALTH": "health",
        "MEMORY": lambda row: mebibytes(row["memory_bytes"]),
        "USED": lambda row: mebibytes(row["used_bytes"]),
        "BUSY": lambda row: _with_unit(row["utilisation_percent"], "%"),
        "TEMP": lambda row: _with_unit(row["temperature_celsius"], "C"),
        "POWER": lambda row: _with_unit(row["power_watts"], "W"),
        "XID": lambda row: f"{row['xid_errors']} (last {row['last_xid']})" if row["xid_errors"] else "",
        "HOLDER": "holder",
        "FAULT": "fault",
    },
    "replicas": {
        "REPLICA": "replica",
        "NODE": "node",
        "STATE": "state",
        "FOR": lambda row: duration(row["seconds"]),
        "WANTED": lambda row: "leaving" if row["leaving"] and row["wanted"] else "yes" if row["wanted"] else "no",
        "PORT": "port",
        "STARTED": "start_level",
        "TOOK": lambda row: duration(row["startup_seconds"]),
        "RUNNING": lambda row: str(row["running_requests"]) + (f"/{most}" if (most := row["max_requests"]) else ""),
        "WAITING": "waiting_requests",
        "KV": lambda row: _percent(row["kv_usage"]),
        "TTFT": lambda row: duration(row["ttft_seconds"]),
        "TPOT": lambda row: duration(row["tpot_seconds"]),
        "PREFIX": lambda row: _percent(row["prefix_hit_share"]),
        "CONTEXT": lambda row: str(row["context_tokens"] or ""),
        "NOTE": lambda row: row["last_error"] or row["start_note"],
    },
    "placeholders": {
        "PLACEHOLDER": "placeholder",
        "NODE": "node",
        "STATE": "state",
        "FOR": lambda row: duration(row["seconds"]),
        "LEVEL": lambda row: row["level"] + ("" if row["level"] == row["target_level"] else f"<{row['target_level']}"),
        "ENGINE": "engine",
        "MEMORY": lambda row: mebibytes(row["memory_bytes"]),
        "PROMOTES": lambda row: (
            "; ".join(f"{each['deployment']} {each['words']}" for each in row["promotes"])
            if row["state"] == "warm"
            else ""
        ),
        "REASON": "reason",
    },
    "placeholder-costs": {
        "DAY": "day",
        "POOL": "pool",
        "SLOT HOURS": "{slot_hours:.2f}",
        "OF THESE WAITED FOR": "{waited_hours:.2f}",
        "GIB HOURS": "{memory_gib_hours:.2f}",
        "PROMOTIONS": lambda row: (
            f"{row['promotions']}" + (f" ({row['unmeasured']} unmeasured)" if row["unmeasured"] else "")
        ),
        "SAVED": lambda row: duration(row["saved_seconds"]),
        "COST $": "cost_usd",
    },
    "deployments": {
        "DEPLOYMENT": "deployment",
        "MODEL": "model",
        "ENGINE": "engine",
        "READY": "ready",
        "DESIRED": "desired",
        "NO SLOT": lambda row: str(row["without_slot"] or ""),
        "RANGE": "{minimum}-{maximum}",
        "TOKENS": "target",
        "SLOTS": "slots_per_replica",
        "ROUTING": "routing",
        "POOLS": lambda row: ",".join(row["pools"]),
        "OBJECTIVES": "objectives",
        "REQUIRES": "requires",
        "$/HOUR": "hour_usd",
    },
    "load-targets": {
        "DEPLOYMENT": "deployment",
        "POOL": "pool",
        "TOKENS": "tokens",
        "FROM": "origin",
        "MEASURED": lambda row: f"{row['measured_at']:%Y-%m-%dT%H:%M:%SZ}" if row["measured_at"] else "",
        "LEARNED FROM": "reason",
    },
    "weights": {
        "MODEL": "model",
        "NODE": "node",
        "STATE": "state",
        "DONE": lambda row: gigabytes(row["bytes_done"]),
        "TOTAL": lambda row: gigabytes(row["bytes_total"]),
        "ATTEMPTS": "attempts",
        "FOLDER": "folder",
        "ERROR": "error",
    },
    "staged": {
        "NODE": "node",
        "MODEL": "model",
        "IN CACHE": lambda row: gigabytes(row["bytes_resident"]),
        "TOTAL": lambda row: gigabytes(row["bytes_total"]),
        "WANTED": "wanted_at",
        "NOTE": "note",
    },
    "decisions": {
        "AT": "{at:%Y-%m-%dT%H:%M:%SZ}",
        "DEPLOYMENT": "deployment",
        "ACTION": "action",
        "REPLICAS": "{from_replicas}>{to_replicas}",
        "POOL": "pool",
        "REASON": "reason",
    },
    "events": {
        "AT": "{at:%Y-%m-%dT%H:%M:%SZ}",
        "REPLICA": "replica",
        "NODE": "node",
        "FROM": "from_state",
        "TO": "to_state",
        "REASON": "reason",
    },
    "rollout status": {
        "STARTED": "{started_at:%Y-%m-%dT%H:%M:%SZ}",
        "DEPLOYMENT": "deployment",
        "STATE": "state",
        "FROM": "earlier_revision",
        "TO": "revision",
        "NEW": "{new_ready}/{new}",
        "OLD": "{old_ready}/{old}",
        "REQUESTS": "requests",
        "FAILED": "failures",
        "BY": "started_by",
        "NOTE": lambda row: "; ".join(filter(None, (row["reason"], row["waits_for"]))),
    },
    "targets": {
        "ADDRESS": "address",
        "ROLE": "role",
        "NODE": "node",
        "POOL": "pool",
        "DEPLOYMENT": "deployment",
        "REPLICA": "replica",
        "PATH": "path",
    },
    "starts": {
        "DEPLOYMENT": "deployment",
        "MODEL": "model",
        "FROM": "level",
        "STARTS": "count",
        "MEDIAN": lambda row: duration(row["median_seconds"]),
        "P95": lambda row: duration(row["p95_seconds"]),
        "FETCH": lambda row: duration(row["parts"]["fetch_seconds"]),
        "LOAD": lambda row: duration(row["parts"]["load_seconds"]),
        "COMPILE": lambda row: duration(row["parts"]["compile_seconds"]),
        "WARM-UP": lambda row: duration(row["parts"]["warm_up_seconds"]),
    },
}
_OF_FLEET: Mapping[str, Callable[[Fleet], list[Row]]] = {
    "pools": json_rows.pools,
    "nodes": json_rows.nodes,
    "slots": json_rows.slots,
    "replicas": json_rows.replicas,
    "placeholders": json_rows.placeholders,
    "deployments": json_rows.deployments,
    "load-targets": json_rows.targets,
    "weights": json_rows.weights,
    "starts": json_rows.starts,
}
#: The lists that need not read the whole fleet, by how many rows, or days, they show.
_OF_HISTORY: Mapping[str, Callable[[int], list[Row]]] = {
    "decisions": lambda last: _rows(history.decisions(last)),
    "events": lambda last: _rows(history.transitions(last)),
    "placeholder-costs": lambda last: json_rows.placeholder_costs(placeholder_costs.newest(last)),
    "rollout status": lambda last: json_rows.rollouts(rollout_status.newest(last)),
    "staged": lambda _: json_rows.staged(staged.statuses()),
    "targets": lambda _: json_rows.scrape_targets(scrape_targets.targets()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One list as text and as JSON. ``well`` is False when there is a problem."""

    text: str
    data: object
    well: bool = True


def read(name: str, last: int) -> Listing:
    """Read the list ``name``; of a history the ``last`` rows, of costs the ``last`` days."""
    if name == "status":
        return _status(inventory.read())
    if (of_history := _OF_HISTORY.get(name)) is not None:
        return _listing(name, of_history(last))
    return _listing(name, _OF_FLEET[name](inventory.read()))


def _status(fleet: Fleet) -> Listing:
    """Return a summary of the fleet, with its problems."""
    parts = {name: _listing(name, _OF_FLEET[name](fleet)) for name in ("nodes", "deployments", "placeholders")}
    troubles = _troubles(fleet)
    verdict = "\n".join(troubles) if troubles else "All is well."
    return Listing(
        text="\n\n".join([*(part.text for part in parts.values()), verdict]),
        data={"well": not troubles, "troubles": troubles} | {name: part.data for name, part in parts.items()},
        well=not troubles,
    )


def _troubles(fleet: Fleet) -> list[str]:
    """Return the problems, a sentence each."""
    silent = [f"Node {node.name} is silent." for node in fleet.nodes if not node.alive]
    short = [
        f"Deployment {each.name} has {each.ready} of {each.desired} replicas ready"
        + (f": {each.obstacles}." if each.obstacles else ".")
        for each in fleet.deployments
        if each.is_short
    ]
    held_up = [
        f"The rollout of {each.name} waits: {each.rollout.waits_for}."
        for each in fleet.deployments
        if each.rollout is not None and each.rollout.waits_for
    ]
    unfetched = [
        f"Deployment {deployment.name}: {each.words}."
        for deployment in fleet.deployments
        if not deployment.is_short
        for each in deployment.weights
        if each.error and not each.is_ready
    ]
    left_out = [
        f"Deployment {each.name} requires {each.requires}, and has no new replica in a pool of its: {why}."
        for each in fleet.deployments
        for why in each.left_out
    ]
    faulty = [
        f"Slot {slot.device_uuid} of node {node.name} is quarantined: {slot.fault or 'no reason given'}."
        for node in fleet.nodes
        for slot in node.slots
        if slot.health == "quarantined"
    ]
    certificates = [
        f"The certificate of node {node.name}: {node.certificate.problem}."
        for node in fleet.nodes
        if node.certificate is not None
        and node.alive
        and node.certificate.problem
        and (node.certificate.expires_at or node.certificate.refusal)  # the first one takes a moment
    ]
    unpromoted = [f"Node {node.name}: {why}." for node in fleet.nodes if node.alive for why in node.promotion_obstacles]
    return [*silent, *certificates, *short, *held_up, *unfetched, *left_out, *unpromoted, *faulty]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share * 100:.0f} %"


def _with_unit(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f} {unit}"


def _rows(entries: Iterable[history.Decision | history.Transition]) -> list[Row]:
    return [{name: value if value is not None else "" for name, value in asdict(each).items()} for each in entries]


def _listing(name: str, rows: Sequence[Row]) -> Listing:
    columns = COLUMNS[name]
    cells = [[_cell(cell, row) for cell in columns.values()] for row in rows]
    return Listing(text=table(list(columns), cells), data=rows)


def _cell(cell: Cell, row: Row) -> str:
    if callable(cell):
        return cell(row)
    if "{" in cell:
        return cell.format_map(row)
    return "" if row[cell] is None else str(row[cell])
