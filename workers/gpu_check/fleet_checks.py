"""What only a running fleet can show. It is listed, so that a report does not look as if it covered everything."""

from __future__ import annotations

from workers.gpu_check.bench import Bench
from workers.gpu_check.device_checks import Passed
from workers.gpu_check.findings import Untried


def lease(_: Bench) -> Passed:
    """An agent leases a GPU to a placeholder, evicts it for a replica, and leases the GPU again."""
    raise Untried(
        "it takes a running node with its agent and the database; the checks above end processes without them. Let "
        "placeholders fill a node and deploy a model there: `celery -A hearth fleet slots` shows who has each GPU"
    )


def rollout(_: Bench) -> Passed:
    """A deployment changes its revision while it serves."""
    raise Untried(
        "it takes a running fleet; `hearth deploy NAME --source OTHER` starts one there, and "
        "`celery -A hearth fleet replicas` shows it"
    )
