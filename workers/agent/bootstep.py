"""Make a Celery worker an agent: ``celery -A hearth worker -P threads -Q node.NAME --hearth-node NAME``.

The worker consumes the node's queue and answers remote control; the agent's thread beside it does the work. This
module imports no models, because Celery sets Django up only after it has loaded the module.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from celery import Celery, bootsteps

if TYPE_CHECKING:
    from workers.agent.agent import Agent
    from workers.serving.canary import CanarySink

NODE_OPTION = "--hearth-node"
CPU_SLOTS_OPTION = "--hearth-cpu-slots"
#: One for each of two replicas and a placeholder.
DEFAULT_CPU_SLOTS = 3


def install(app: Celery, open_sink: Callable[[], CanarySink], sockets: Path) -> None:
    """Add the options and the boot step to the app's workers.

    ``open_sink`` is called in workers that have a node; ``sockets`` is a folder that only the agent uses.
    """

    class Step(AgentStep):
        sink_opener = staticmethod(open_sink)

    Step.sockets = sockets
    cpu_slots = "Slots of a node without GPUs where HEARTH_SLOTS is auto."
    app.user_options["worker"].update(
        (
            click.Option((NODE_OPTION,), help="Run the agent of this node."),
            click.Option((CPU_SLOTS_OPTION,), type=int, default=DEFAULT_CPU_SLOTS, help=cpu_slots),
        )
    )
    app.steps["worker"].add(Step)


class AgentStep(bootsteps.StartStopStep):
    """Starts the agent with the worker; stopping the worker only detaches the agent from the engines."""

    requires = ("celery.worker.components:Pool",)
    sink_opener: Callable[[], CanarySink]
    sockets: Path

    def __init__(
        self,
        parent: Any,
        hearth_node: str | None = None,
        hearth_cpu_slots: int = DEFAULT_CPU_SLOTS,
        **options: Any,
    ) -> None:
        self.node = hearth_node
        self.cpu_slots = hearth_cpu_slots

    def include_if(self, parent: Any) -> bool:
        """Return whether the worker was given a node."""
        return bool(self.node)

    def create(self, parent: Any) -> Agent:  # type: ignore[override]  # the stubs declare no result
        """Return the agent; Celery starts and stops it."""
        from django.conf import settings

        from workers.agent.agent import Agent
        from workers.devices.choice import provider_for

        assert self.node is not None, "include_if"
        return Agent(
            self.node,
            settings.DATA_DIR,
            self.sink_opener,
            provider_for(settings.SLOTS, self.cpu_slots, settings.DATA_DIR),
            sockets=self.sockets,
        )
