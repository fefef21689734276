"""What operators ask agents through Celery: ``celery -A hearth inspect replicas``.

Imported by the app module, because the command line does not import autodiscovered modules and would not know the
command. Handlers run in the worker's event loop, so they answer from memory.
"""

from __future__ import annotations

from typing import Any

from celery.worker.control import inspect_command


@inspect_command()
def replicas(state: Any, **options: Any) -> dict[str, list[dict[str, Any]]]:
    """List the replicas this agent supervises."""
    from workers.agent.supervisor import views

    return {
        node: [
            {
                "replica": str(view.replica_id),
                "state": view.state,
                "wanted": view.wanted,
                "generation": view.generation,
                "port": view.port,
            }
            for view in found
        ]
        for node, found in views().items()
    }
