"""Reserving slots of a deployment: what its range must have room for, and what scaling does about it."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from catalogue.models import Model
from reserved_capacity import registry
from reserved_capacity.errors import ReservationRefused
from reserved_capacity.models import CapacityReservation
from reserved_capacity.registry import Wanted
from tenants import registry as tenants
from tenants.audit import SYSTEM
from tenants.models import Tenant
from tests.workers.conftest import Fleet
from workers.errors import NotFound, Refused
from workers.fleet import deployments, reserved_capacity
from workers.models import Deployment, Replica, ScaleDecision
from workers.scheduler import reconciler

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme(db: None) -> Tenant:
    return tenants.create_tenant(SYSTEM, slug="acme", name="Acme")


def wanted(slots: int, **changes: object) -> Wanted:
    values = {
        "deployment": "chat",
        "slots": slots,
        "starts_at": registry.next_hour(timezone.now()),
        "ends_at": None,
        "slot_hour_pico": 1,
    } | changes
    return Wanted(**values)  # type: ignore[arg-type]


def reserve(tenant: Tenant, slots: int, **changes: object) -> CapacityReservation:
    return reserved_capacity.reserve(SYSTEM, tenant, wanted(slots, **changes))


def test_a_deployment_must_have_room_for_it(fleet: Fleet, acme: Tenant) -> None:
    row = fleet.deploy(1)
    with pytest.raises(NotFound):
        reserve(acme, 1, deployment="nothing")
    with pytest.raises(ReservationRefused, match="fleet scale chat 1-3"):
        reserve(acme, 3)
    Deployment.objects.filter(id=row.id).update(max_replicas=3, slots_per_replica=2)
    with pytest.raises(ReservationRefused, match="takes 2 slots, and 3 is no multiple"):
        reserve(acme, 3)
    assert reserve(acme, 6).model_names == ["tiny-chat"]
    globex = tenants.create_tenant(SYSTEM, slug="globex", name="Globex")
    with pytest.raises(ReservationRefused, match="8 slots of chat are reserved, which are 4 replicas; 3 are allowed"):
        reserve(globex, 2)
    Model.objects.update(visibility=Model.Visibility.PRIVATE)
    with pytest.raises(ReservationRefused, match="globex may not call tiny-chat"):
        reserve(globex, 2)


def test_a_range_does_not_exclude_what_is_reserved(fleet: Fleet, acme: Tenant) -> None:
    row = fleet.deploy(1)
    Deployment.objects.filter(id=row.id).update(max_replicas=3)
    made = reserve(acme, 2, starts_at=registry.next_hour(timezone.now()) + dt.timedelta(days=40))
    with pytest.raises(Refused, match="are reserved"):
        deployments.scale(SYSTEM, "chat", 0, 1)
    with pytest.raises(Refused, match="are reserved"):
        deployments.archive(SYSTEM, fleet.revision.model)
    deployments.scale(SYSTEM, "chat", 0, 2)
    registry.end(SYSTEM, made.id)
    deployments.scale(SYSTEM, "chat", 0, 1)
    assert deployments.archive(SYSTEM, fleet.revision.model) == 1


def test_scaling_keeps_what_is_reserved_without_any_load(fleet: Fleet, acme: Tenant) -> None:
    row = fleet.deploy(0)
    Deployment.objects.filter(id=row.id).update(max_replicas=3)
    made = reserve(acme, 2)
    CapacityReservation.objects.update(starts_at=timezone.now() + dt.timedelta(minutes=16))
    reconciler.tick()
    row.refresh_from_db()
    assert row.desired_replicas == 0
    CapacityReservation.objects.update(starts_at=timezone.now() + dt.timedelta(minutes=14))
    reconciler.tick()
    row.refresh_from_db()
    assert (row.desired_replicas, row.min_replicas, Replica.objects.count()) == (2, 0, 2)
    decision = ScaleDecision.objects.get()
    assert (decision.action, decision.reason) == ("up", "2 replicas are reserved by tenants")
    reconciler.tick()
    assert ScaleDecision.objects.count() == 1
    now = timezone.now()
    CapacityReservation.objects.filter(id=made.id).update(ends_at=now, starts_at=now)
    deployments.scale(SYSTEM, "chat", 0, 1)
    row.refresh_from_db()
    assert row.desired_replicas == 1
