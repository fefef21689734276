"""Make a Celery worker an agent: ``celery -A hearth worker -P threads -Q node.NAME --hearth-node NAME``.

The worker carries the node's queue and answers remote control; the supervising thread beside it does the work. No
models are imported before Django is set up, which Celery does after this module is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from celery import Celery, bootsteps

if TYPE_CHECKING:
    from workers.agent.agent import Agent
    from workers.agent.probes.canary import CanarySink

NODE_OPTION = "--hearth-node"


def install(app: Celery, open_sink: Callable[[], CanarySink], sockets: Path) -> None:
    """Give the app's workers the option and the step.

    ``open_sink`` is called in workers that have the option; ``sockets`` is a folder for the agent alone.
    """

    class Step(AgentStep):
        sink_opener = staticmethod(open_sink)

    Step.sockets = sockets
    app.user_options["worker"].add(click.Option((NODE_OPTION,), help="Supervise the engines of this node."))
    app.steps["worker"].add(Step)


class AgentStep(bootsteps.StartStopStep):
    """Starts the supervisor with the worker; stopping the worker only detaches from the engines."""

    requires = ("celery.worker.components:Pool",)
    sink_opener: Callable[[], CanarySink]
    sockets: Path

    def __init__(self, parent: Any, hearth_node: str | None = None, **options: Any) -> None:
        self.node = hearth_node

    def include_if(self, parent: Any) -> bool:
        """Return True in a worker that was given a node."""
        return bool(self.node)

    def create(self, parent: Any) -> Agent:  # type: ignore[override]  # the stubs forget what it is for
        """Return the supervisor; Celery starts and stops it."""
        from django.conf import settings

        from workers.agent.agent import Agent
        from workers.devices.choice import provider_for

        assert self.node is not None, "include_if"
        return Agent(
            self.node,
            settings.DATA_DIR,
            self.sink_opener,
            provider_for(settings.SLOTS, settings.REPLICAS + settings.PLACEHOLDERS, settings.DATA_DIR),
            sockets=self.sockets,
        )
