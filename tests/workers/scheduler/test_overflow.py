"""The next pool is prepared before the first is full (scenario S2): real agents and engines, reported loads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tenants.audit import SYSTEM
from tests.workers.agent_processes import KeptCanaries, agent_thread, end_everything, until
from tests.workers.conftest import Fleet
from workers.fleet import deployments
from workers.models import Deployment, Placeholder, Pool, Replica, ScaleDecision
from workers.scheduler import reconciler
from workers.serving import gateway_load
from workers.serving.gateway_load import DeploymentLoad

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]

TARGET_TOKENS = 1000
#: The target load of four replicas, the number that fits on the first node.
FULL = 4 * TARGET_TOKENS
PATIENCE = 60.0


@pytest.fixture
def chat(fleet: Fleet, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment of 1 to 8 replicas over two pools of a node each; the second keeps a zygote warm."""
    overflow = deployments.ensure_pool(SYSTEM, name="overflow", kind="simulated")
    deployments.ensure_node(SYSTEM, pool=overflow, name="n2")
    Pool.objects.filter(id=overflow.id).update(placeholders_per_node=1)
    row = fleet.deploy(1, pools=(fleet.pool, overflow))
    Deployment.objects.filter(id=row.id).update(
        max_replicas=8, target_tokens_per_replica=TARGET_TOKENS, scale_up_delay_seconds=0.0
    )
    with ExitStack() as agents:
        for name in (fleet.node.name, "n2"):
            data_dir = tmp_path / name
            data_dir.mkdir()
            agents.callback(end_everything, data_dir)
            agents.enter_context(agent_thread(data_dir, KeptCanaries(), node=name))
        reach(row, 0, replicas=1)
        until(lambda: Placeholder.objects.filter(state="warm", level="h2").exists(), seconds=PATIENCE)
        yield row


def reach(row: Deployment, percent: int, *, replicas: int) -> None:
    """Report load as a gateway while the first pool is ``percent`` full, until this many replicas are wanted and ready.

    The ramp takes as long as this machine takes to start engines, so its pace is forgotten: high water alone counts.
    """
    tokens = FULL * percent // 100
    load = DeploymentLoad(in_flight_requests=tokens // 100, in_flight_tokens=tokens)
    Deployment.objects.update(sampled_at=None)

    def reached() -> bool:
        gateway_load.report("gateway-1", {row.id: load})
        reconciler.tick()
        wanted = list(Replica.objects.filter(desired_state="running").values_list("state", flat=True))
        return wanted == ["ready"] * replicas

    until(reached, seconds=PATIENCE)


def ramp_to_sixty(row: Deployment) -> None:
    """Let the load grow; the first pool's replicas follow: 400 tokens more each time, 1,000 to a replica."""
    for percent, replicas in ((10, 1), (20, 1), (30, 2), (40, 2), (50, 2), (60, 3)):
        reach(row, percent, replicas=replicas)


def test_a_replica_of_the_next_pool_serves_before_the_first_is_full(chat: Deployment) -> None:
    ramp_to_sixty(chat)
    assert not Replica.objects.filter(node__name="n2").exists()
    reach(chat, 70, replicas=4)
    prepared = Replica.objects.get(node__name="n2")
    assert (prepared.state, prepared.start_level) == ("ready", "h2")
    decision = ScaleDecision.objects.get(action="prepare")
    assert decision.reason == "pool local is 70% full, high water is 70%: one replica is prepared in pool overflow"
    reach(chat, 100, replicas=5)
    reach(chat, 120, replicas=5)
    assert Replica.objects.get(node__name="n2") == prepared


@pytest.mark.long
def test_a_load_that_stops_before_high_water_starts_nothing_in_the_next_pool(chat: Deployment) -> None:
    ramp_to_sixty(chat)
    for _ in range(5):
        reach(chat, 60, replicas=3)
    assert not Replica.objects.filter(node__name="n2").exists()
    assert not ScaleDecision.objects.filter(action="prepare").exists()
    assert Placeholder.objects.filter(node__name="n2", state="warm").count() == 1
