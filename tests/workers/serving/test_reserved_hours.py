"""How far reserved slots were available: exact seconds from transitions, shared between those who reserved them."""

from __future__ import annotations

import datetime as dt

import pytest

from reserved_capacity.models import CapacityReservation, ReservedHour
from tenants import registry as tenants
from tenants.audit import SYSTEM
from tenants.models import Tenant
from tests.workers.conftest import Fleet
from workers.models import Deployment, Replica, ReplicaEvent, Slot, SlotLease
from workers.serving import reserved_hours

pytestmark = pytest.mark.django_db
NOON = dt.datetime(2026, 3, 2, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


def at(hours: float) -> dt.datetime:
    return NOON + dt.timedelta(hours=hours)


def reserve(slug: str, slots: int, start: float = 0, end: float = 3) -> CapacityReservation:
    return CapacityReservation.objects.create(
        tenant=Tenant.objects.filter(slug=slug).first() or tenants.create_tenant(SYSTEM, slug=slug, name=slug),
        deployment="chat",
        model_names=["tiny-chat"],
        slots=slots,
        starts_at=at(start),
        ends_at=at(end),
        currency="USD",
        slot_hour_pico=1,
    )


def replica(
    fleet: Fleet,
    deployment: Deployment,
    number: int,
    *states: tuple[float, str],
    slots: int = 1,
    recorded_from: float = -9,
    **values: object,
) -> Replica:
    """Create a replica that went into these states at these hours after noon, and had its slots all the time."""
    row = Replica.objects.create(
        deployment=deployment,
        revision=deployment.revision,
        node=fleet.node,
        state=states[-1][1],
        state_since=at(states[-1][0]),
        created_at=at(-100),
        **values,
    )
    before = "requested"
    for hour, state in states:
        if hour >= recorded_from:
            ReplicaEvent.objects.create(replica=row, from_state=before, to_state=state, created_at=at(hour))
        before = state
    for slot in Slot.objects.filter(node=fleet.node).order_by("index")[number : number + slots]:
        SlotLease.objects.create(slot=slot, kind=SlotLease.Kind.REPLICA, fence=1, replica=row, acquired_at=at(-100))
    return row


def measured(row: CapacityReservation) -> list[int]:
    hours = ReservedHour.objects.filter(reservation=row).order_by("starts_at")
    return list(hours.values_list("available_seconds", flat=True))


def test_each_second_counts_and_each_hour_is_measured_once(fleet: Fleet) -> None:
    chat = fleet.deploy(0)
    row = reserve("acme", 2)
    replica(fleet, chat, 0, (-5, "ready"), (0.5, "suspect"), (0.75, "ready"), (2, "stopped"))
    replica(fleet, chat, 1, (-1, "starting"), (1.5, "ready"))
    replica(fleet, fleet.deploy(0, name="other"), 2, (-5, "ready"))
    assert reserved_hours.measure(at(3)) == 2  # the last one is not settled
    assert reserved_hours.measure(at(3.1)) == 1
    assert reserved_hours.measure(at(9)) == 0
    assert measured(row) == [2700, 3600 + 1800, 3600]


def test_no_more_than_what_is_reserved_counts_at_any_moment(fleet: Fleet) -> None:
    chat = fleet.deploy(0)
    row = reserve("acme", 2)
    replica(fleet, chat, 0, (-5, "ready"), (0.5, "failed"), slots=2)
    replica(fleet, chat, 2, (-5, "ready"), (0.5, "failed"), slots=2)
    reserved_hours.measure(at(9))
    assert measured(row) == [3600, 0, 0]


def test_those_who_reserved_share_what_is_missing(fleet: Fleet) -> None:
    chat = fleet.deploy(0)
    mine, theirs = reserve("acme", 1), reserve("globex", 2, 1, 2)
    replica(fleet, chat, 0, (-5, "ready"))
    reserved_hours.measure(at(9))
    assert (measured(mine), measured(theirs)) == ([3600, 1200, 3600], [2400])


def test_a_replica_counts_once_its_canary_passed(fleet: Fleet) -> None:
    chat = fleet.deploy(0)
    row = reserve("acme", 1)
    replica(fleet, chat, 0, (-5, "ready"), canary="passed", canary_at=at(1.25))
    replica(fleet, chat, 1, (-5, "ready"), canary="failed", canary_at=at(-1))
    reserved_hours.measure(at(9))
    assert measured(row) == [0, 2700, 3600]


def test_transitions_before_the_hours_may_have_been_deleted(fleet: Fleet) -> None:
    chat = fleet.deploy(0)
    row = reserve("acme", 2)
    replica(fleet, chat, 0, (-5, "ready"), recorded_from=0)
    replica(fleet, chat, 1, (-5, "ready"), (2.5, "draining"), recorded_from=0)
    reserved_hours.measure(at(9))
    assert measured(row) == [7200, 7200, 5400]
