"""Name these engines as the replicas of the instance's model: ``python -m benchmarks.routing_live.seed TOKENS PORT …``.

Run in an instance's environment after ``benchmarks.gateway.seed``, which creates the model and its first replica.
TOKENS is what each engine's cache holds. Gateways that were ended are forgotten at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import django
from django.db import transaction


@transaction.atomic
def seed(cache_tokens: int, ports: Sequence[int]) -> None:
    """Make the replicas these engines, all of them new."""
    from workers.models import GatewayLoad, Replica
    from workers.serving import endpoints

    replicas = list(Replica.objects.order_by("id"))
    first = replicas[0]
    for _ in range(len(replicas), len(ports)):
        replicas.append(Replica.objects.create(deployment=first.deployment, revision=first.revision, node=first.node))
    for replica, port in zip(replicas, ports, strict=True):
        replica.state, replica.host, replica.port = Replica.State.READY, "127.0.0.1", port
        replica.generation += 1
        replica.cache_tokens = cache_tokens
        replica.save()
    GatewayLoad.objects.all().delete()
    endpoints.announce()


if __name__ == "__main__":
    django.setup()
    seed(int(sys.argv[1]), [int(port) for port in sys.argv[2:]])
