"""What gateways count for rollouts adds up over processes and replicas until the rollout has ended."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.db.models.functions import Now

from tests.workers.conftest import Fleet
from workers.models import Deployment, Replica, Rollout, RolloutTraffic
from workers.serving import gateway_load, rollout_traffic
from workers.serving.rollout_traffic import Traffic

pytestmark = pytest.mark.django_db


def begin(deployment: Deployment) -> Rollout:
    """Begin a rollout."""
    return Rollout.objects.create(
        deployment=deployment,
        revision=deployment.revision,
        slots_per_replica=1,
        earlier_revision=deployment.revision,
        earlier_slots_per_replica=1,
    )


def made_by(rollout: Rollout | None, deployment: Deployment) -> Replica:
    """Return a replica that the rollout made."""
    return Replica.objects.create(deployment=deployment, revision=deployment.revision, rollout=rollout)


def test_all_processes_and_replicas_of_a_rollout_add_up_and_a_later_report_replaces_the_earlier_one(
    fleet: Fleet,
) -> None:
    deployment, other = fleet.deploy(1), fleet.deploy(1, name="other")
    rollout, another = begin(deployment), begin(other)
    one, two = made_by(rollout, deployment), made_by(rollout, deployment)
    elsewhere = made_by(another, other)
    assert rollout_traffic.of_rollout(rollout.id) == Traffic()
    rollout_traffic.report("a", {one.id: Traffic(requests=1), elsewhere.id: Traffic(requests=9, slow=9)})
    rollout_traffic.report("a", {one.id: Traffic(requests=5, failures=1), two.id: Traffic(requests=2, slow=1)})
    rollout_traffic.report("b", {one.id: Traffic(requests=10, failures=2, slow=3)})
    assert rollout_traffic.of_rollout(rollout.id) == Traffic(requests=17, failures=3, slow=4)
    assert rollout_traffic.of_rollout(another.id) == Traffic(requests=9, slow=9)


def test_what_has_no_open_rollout_is_passed_over_and_removed(fleet: Fleet) -> None:
    deployment = fleet.deploy(1)
    rollout = begin(deployment)
    new, ordinary = made_by(rollout, deployment), made_by(None, deployment)
    rollout_traffic.report("a", {each: Traffic(requests=1) for each in (new.id, ordinary.id, uuid4())})
    gateway_load.forget_silent()
    assert [row.replica_id for row in RolloutTraffic.objects.all()] == [new.id]
    Rollout.objects.filter(id=rollout.id).update(finished_at=Now())
    gateway_load.forget_silent()
    rollout_traffic.report("a", {new.id: Traffic(requests=2)})
    assert not RolloutTraffic.objects.exists()
