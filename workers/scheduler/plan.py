"""Decide what a tick changes, for all deployments, from facts alone: no database, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workers.scheduler.failback import move_back
from workers.scheduler.rollout.steps import advance
from workers.scheduler.slots.placement import DeploymentView, FreeSlots, NodeView, Steps, settle
from workers.scheduler.slots.reservation import keep


def plan(deployments: Iterable[DeploymentView], nodes: Sequence[NodeView]) -> Steps:
    """Return the steps from the present to the desired state. Equal facts give equal steps, in any order of nodes.

    The deployment that has waited longest for slots chooses first.
    """
    free_slots, steps = FreeSlots(nodes), Steps()
    deployments = sorted(deployments, key=lambda each: -(each.waited_seconds or 0.0))
    for deployment in deployments:
        if deployment.rollout is None:
            settle(deployment, free_slots, steps)
            keep(deployment, free_slots, steps)
        else:
            advance(deployment, deployment.rollout, free_slots, steps)
    for deployment in deployments:
        move_back(deployment, free_slots, steps)
    return steps
