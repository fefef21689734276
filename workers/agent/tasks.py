"""The Celery task that only agents run, from the queue of their node."""

from __future__ import annotations

from celery import shared_task

from workers.tasks import POKE


@shared_task(name=POKE)
def poke() -> None:
    """Start the next round of every agent in this process at once. Does nothing in a process without an agent."""
    from workers.agent.agent import wake_all

    wake_all()
