"""The expected start-up time for waiting requests: what earlier starts of the same kind took."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.utils import timezone

from tenants.audit import SYSTEM
from tests.workers.conftest import Fleet, add_node, expire_lease
from workers.fleet import deployments
from workers.models import Deployment, DeploymentPool, Level, Placeholder, Pool, Replica, StartTime
from workers.serving import start_times, startup_eta

pytestmark = pytest.mark.django_db


def measure(deployment: Deployment, level: str, *seconds: float, pool: Pool | None = None) -> None:
    """Record starts of the deployment's revision, by default in its first pool."""
    replica = Replica.objects.create(
        deployment=deployment, revision=deployment.revision, state=Replica.State.STOPPED, desired_state="stopped"
    )
    pool = pool or DeploymentPool.objects.filter(deployment=deployment)[0].pool
    for each in seconds:
        StartTime.objects.create(
            replica=replica, revision=deployment.revision, pool=pool, level=level, seconds=each, process_seconds=each
        )


def test_without_a_measurement_a_guess_is_promised(fleet: Fleet) -> None:
    deployment = fleet.deploy(0)
    assert startup_eta.etas()[deployment.id] == startup_eta.UNMEASURED_SECONDS


def test_the_median_of_the_newest_starts_is_promised(fleet: Fleet) -> None:
    deployment = fleet.deploy(0)
    measure(deployment, Level.COLD, *[900.0] * 5)
    measure(deployment, Level.COLD, *[20.0, 30.0] * (start_times.NEWEST // 2))
    assert startup_eta.etas()[deployment.id] == 25.0


def test_a_warm_placeholder_of_its_engine_shortens_the_promise(fleet: Fleet) -> None:
    deployment = fleet.deploy(0)
    measure(deployment, Level.COLD, 26.0)
    measure(deployment, Level.H2, 3.5)
    assert startup_eta.etas()[deployment.id] == 26.0
    waiting = Placeholder.objects.create(
        node=fleet.node, engine="other", target_level=Level.H2, level=Level.H2, state=Placeholder.State.WARM
    )
    assert startup_eta.etas()[deployment.id] == 26.0
    Placeholder.objects.filter(id=waiting.id).update(engine=deployment.revision.engine)
    assert startup_eta.etas()[deployment.id] == 3.5
    expire_lease(fleet.node)
    assert startup_eta.etas()[deployment.id] == 26.0


def test_pools_that_lack_what_it_requires_promise_nothing(fleet: Fleet) -> None:
    deployment = fleet.deploy(0)
    measure(deployment, Level.COLD, 26.0)
    measure(deployment, Level.H2, 3.5)
    engine = deployment.revision.engine
    Placeholder.objects.create(
        node=fleet.node, engine=engine, target_level=Level.H2, level=Level.H2, state=Placeholder.State.WARM
    )
    assert startup_eta.etas()[deployment.id] == 3.5
    assert startup_eta.deployed()[0].regions == {"local"}
    Deployment.objects.filter(id=deployment.id).update(requires={"labels": {"net": "ib"}})
    assert startup_eta.etas()[deployment.id] == startup_eta.UNMEASURED_SECONDS
    assert startup_eta.deployed()[0].regions == frozenset()
    fast = deployments.ensure_pool(SYSTEM, name="fast", kind="simulated", region="eu")
    Pool.objects.filter(id=fast.id).update(labels={"net": "ib"})
    DeploymentPool.objects.create(deployment=deployment, pool=fast, sequence=2)
    assert startup_eta.deployed()[0].regions == {"eu"}
    measure(deployment, Level.COLD, 40.0, pool=fast)
    measure(deployment, Level.H2, 5.0, pool=fast)
    assert startup_eta.etas()[deployment.id] == 40.0  # the placeholder is in the other pool
    Placeholder.objects.update(node=add_node(fast, "n2"))
    assert startup_eta.etas()[deployment.id] == 5.0
    Pool.objects.filter(id=fleet.pool.id).update(labels={"net": "ib"})
    assert startup_eta.deployed()[0].regions == {"eu", "local"}


def test_a_replica_that_is_coming_promises_what_its_own_start_takes(fleet: Fleet) -> None:
    deployment = fleet.deploy(0)
    measure(deployment, Level.COLD, 26.0)
    measure(deployment, Level.H2, 3.5)
    Replica.objects.create(
        deployment=deployment, revision=deployment.revision, state=Replica.State.STARTING, start_level=Level.H2
    )
    assert startup_eta.etas()[deployment.id] == 3.5


def test_a_level_that_was_not_measured_is_taken_for_a_colder_one_never_for_a_warmer(fleet: Fleet) -> None:
    measure(fleet.deploy(0), Level.COLD, 26.0)
    (cold,) = start_times.summaries({fleet.revision.id})[fleet.revision.id]
    assert [startup_eta.expected([cold], level) for level in ("h2", "h0", "cold")] == [26.0] * 3
    warm = replace(cold, level="h2", median_seconds=3.5)
    assert [startup_eta.expected([warm], level) for level in ("h2", "cold")] == [3.5, startup_eta.UNMEASURED_SECONDS]


def test_a_deployment_of_none_wakes_for_nobody_and_an_archived_one_is_not_told(fleet: Fleet) -> None:
    one, none = fleet.deploy(1, name="one"), fleet.deploy(0, name="none")
    assert [(each.id, each.may_wake) for each in startup_eta.deployed()] == [(none.id, False), (one.id, True)]
    Deployment.objects.filter(id=one.id).update(archived_at=timezone.now())
    assert [each.name for each in startup_eta.deployed()] == ["none"]
