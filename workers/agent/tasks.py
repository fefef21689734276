"""The Celery task that only agents run, from the queue of their node.

The Celery app imports this module before Django is set up, so it imports no models.
"""

from __future__ import annotations

from celery import shared_task


@shared_task(name="workers.tasks.poke")
def poke() -> None:
    """Start the next round of every agent in this process at once. Does nothing in a process without an agent."""
    from workers.agent.agent import wake_all

    wake_all()
