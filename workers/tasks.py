"""Celery tasks of this room: short, idempotent, and safe to lose, because the next tick does the same work."""

from __future__ import annotations

from celery import shared_task

from workers import reconcile


@shared_task(name="workers.tasks.reconcile")
def reconcile_fleet() -> None:
    """Do one round of reconcile, then wake the agents concerned. A tick that another worker does is skipped."""
    outcome = reconcile.tick()
    for node in outcome.nodes if outcome else ():
        # Agents look by themselves every second: a lost hint costs that second and nothing else.
        poke.apply_async(queue=node_queue(node), expires=5)


@shared_task(name="workers.tasks.poke")
def poke() -> None:
    """Make the agent in this process look at once. Does nothing in a process without one."""
    from workers.agent.supervisor import wake_all

    wake_all()


def node_queue(node: str) -> str:
    """Return the queue that only the node's agent reads."""
    return f"node.{node}"
