"""Which promotions the scheduler may count on, by what `hearth gpu-check` last found on a node.

A placeholder with one GPU is kept unless the check of its promotion failed: a promotion that goes wrong becomes a plain
start. One with several GPUs takes slots that other models could use, so it is kept only where the check passed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from catalogue.models import ModelRevision
from workers.devices import gpu_report
from workers.devices.gpu_report import GANG_PROMOTION, PROMOTION
from workers.engines.driver import named_version
from workers.models import Deployment, Node
from workers.serving import promotion

#: The engine that uses no GPU, whatever its slots are.
_WITHOUT_GPU = "simulated"


def obstacle(node: Node, revision: ModelRevision, slots: int) -> str:
    """Return why the node's pool keeps no placeholder there that becomes a replica of the revision on ``slots`` slots.

    Empty if it may. Only for nodes of pools of GPUs.
    """
    if node.pool.kind != "gpu" or revision.engine == _WITHOUT_GPU:
        return ""
    program = named_version(revision.engine, revision.engine_version) or _first(node, revision.engine)
    report = gpu_report.read(node.gpu_check)
    if report is None or report.devices != gpu_report.GPU:
        return _of_gang(slots, "it has not been run there")
    if report.engine != program:
        return _of_gang(slots, f"it tried {report.engine} there, not {program or revision.engine}")
    single = report.of(PROMOTION)
    if single is not None and single.verdict == "fail":
        return f"the check “{PROMOTION}” of hearth gpu-check failed there: {single.text}"
    gang = report.of(GANG_PROMOTION)
    if gang is not None and gang.verdict == "pass":
        return ""
    return _of_gang(slots, "it was not made there" if gang is None else f"{gang.verdict} there: {gang.text}")


def of_node(node: Node, deployments: Iterable[Deployment]) -> tuple[str, ...]:
    """Return the obstacles to placeholders for these deployments, each with its deployment's name."""
    find = functools.partial(obstacle, node)
    found = (
        (row.name, find(row.revision, promotion.slots_needed(row.slots_per_replica, node.pool.kind)))
        for row in deployments
    )
    return tuple(f"no placeholder for {name}: {why}" for name, why in found if why)


def _of_gang(slots: int, why: str) -> str:
    if slots == 1:
        return ""
    return f"{slots} GPUs need the check “{GANG_PROMOTION}” of hearth gpu-check passed: {why}"


def _first(node: Node, engine: str) -> str:
    """Return the version that the node runs for revisions that name none; empty if it reports none."""
    if node.engines_epoch != node.epoch:
        return ""
    return next((each for each in node.engines if each.startswith(f"{engine} ")), "")
