"""Reservations: made for hours to come, ended sooner, and what they ask of a deployment at each moment."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest
from django.db import Error, connection, transaction
from django.utils import timezone

from reserved_capacity import listing, measured, reading, registry
from reserved_capacity.errors import ReservationRefused
from reserved_capacity.models import CapacityReservation, ReservedHour
from reserved_capacity.registry import LEAD, Wanted
from tenants import registry as tenants
from tenants.audit import SYSTEM
from tenants.database import rls
from tenants.errors import NotFound
from tenants.ids import new_id
from tenants.models import AuditEntry, Tenant
from tests.tenants.customers import Customer

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


def soon(hours: int = 0) -> dt.datetime:
    """Return the next full hour, or one after that."""
    return registry.next_hour(timezone.now()) + hours * HOUR


def wanted(slots: int = 4, start: int = 0, end: int | None = None, deployment: str = "chat") -> Wanted:
    return Wanted(
        deployment=deployment,
        slots=slots,
        starts_at=soon(start),
        ends_at=None if end is None else soon(end),
        slot_hour_pico=2_500_000_000_000,
    )


def reserve(customer: Customer, asked: Wanted) -> CapacityReservation:
    return registry.reserve(SYSTEM, customer.tenant, asked, "tiny-chat")


def test_a_reservation_is_made_audited_and_listed(acme: Customer, globex: Customer) -> None:
    made = reserve(acme, wanted(end=48))
    assert (made.currency, made.model_names, made.slots) == (acme.tenant.currency, ["tiny-chat"], 4)
    entry = AuditEntry.objects.get(action="reservation.set")
    assert entry.tenant == acme.tenant and entry.after is not None and entry.after["slots"] == 4
    [listed] = listing.read()
    assert (listed.id, listed.state, listed.available) == (made.id, "scheduled", None)
    assert [each.id for each in listing.read([acme.tenant.id])] == [made.id] and not listing.read([globex.tenant.id])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"slots": 0}, "slots"),
        ({"slots": 16_001}, "slots"),
        ({"slot_hour_pico": -1}, "slot_hour_pico"),
        ({"tokens_per_slot_hour": 10**12 + 1}, "tokens_per_slot_hour"),
        ({"starts_at": soon(-2)}, "starts_at"),
        ({"starts_at": soon() + dt.timedelta(minutes=30)}, "starts_at"),
        ({"starts_at": dt.datetime(9999, 1, 1, tzinfo=dt.UTC)}, "starts_at"),
        ({"ends_at": soon()}, "ends_at"),
        ({"ends_at": soon(2) + dt.timedelta(seconds=1)}, "ends_at"),
    ],
)
def test_what_is_wrong_is_refused(acme: Customer, changes: dict[str, object], field: str) -> None:
    with pytest.raises(ReservationRefused) as refused:
        reserve(acme, replace(wanted(), **changes))  # type: ignore[arg-type]
    assert refused.value.field == field
    assert not CapacityReservation.objects.exists()


def test_a_tenant_has_one_reservation_of_a_deployment_at_a_time(acme: Customer, globex: Customer) -> None:
    reserve(acme, wanted(start=10, end=20))
    for start, end in ((0, None), (0, 11), (19, 30), (12, 13)):
        with pytest.raises(ReservationRefused, match="has 4 slots of chat reserved"):
            reserve(acme, wanted(start=start, end=end))
    reserve(acme, wanted(start=0, end=10))
    reserve(acme, wanted(start=20))
    reserve(acme, wanted(deployment="other"))
    reserve(globex, wanted(start=12))
    assert CapacityReservation.objects.count() == 5


def test_what_is_reserved_at_once_is_summed(acme: Customer, globex: Customer) -> None:
    reserve(acme, wanted(4, 0, 10))
    reserve(globex, wanted(3, 5, 20))
    reserve(acme, wanted(6, 20))
    now = soon() - LEAD
    assert registry.slots_now(now - dt.timedelta(seconds=1)) == {}
    assert registry.slots_now(now) == {"chat": 4}
    assert registry.slots_now(soon(7)) == {"chat": 7}
    assert registry.slots_now(soon(10)) == {"chat": 3}
    assert registry.most_slots("chat", soon()) == 9  # the lead of the last one overlaps with the second
    assert registry.most_slots("chat", soon(), soon(5) - HOUR) == 4
    assert registry.most_slots("other", soon()) == 0
    tenants.archive(SYSTEM, globex.tenant)
    assert registry.most_slots("chat", soon()) == 6


def test_a_reservation_ends_sooner_and_never_later(acme: Customer) -> None:
    made = reserve(acme, wanted(end=48))
    for at in (soon(49), soon(-3), soon(3) + dt.timedelta(minutes=1)):
        with pytest.raises(ReservationRefused):
            registry.end(SYSTEM, made.id, at)
    assert registry.end(SYSTEM, made.id, soon(24)).ends_at == soon(24)
    assert registry.end(SYSTEM, made.id, soon(24)).ends_at == soon(24)
    assert AuditEntry.objects.filter(action="reservation.ended").count() == 1
    assert registry.end(SYSTEM, made.id).ends_at == made.starts_at  # it had not begun
    assert registry.slots_now(soon(1)) == {} and listing.read()[0].state == "ended"
    reserve(acme, wanted())
    with pytest.raises(NotFound):
        registry.end(SYSTEM, new_id())


def test_an_archived_tenant_reserves_nothing_any_more(acme: Customer) -> None:
    tenants.archive(SYSTEM, acme.tenant)
    with pytest.raises(ReservationRefused, match="is archived"):
        reserve(acme, wanted())


def test_the_database_lets_only_the_end_come_sooner(acme: Customer) -> None:
    made = reserve(acme, wanted(end=48))
    ReservedHour.objects.create(
        reservation=made, tenant_id=acme.tenant.id, starts_at=soon(), slots=4, available_seconds=0
    )
    rls.grant("hearth_app")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE hearth_app")
    registry.end(SYSTEM, made.id, soon(24))
    registry.add_name("tiny-chat", "chat")
    made.refresh_from_db()
    assert (made.ends_at, made.model_names) == (soon(24), ["tiny-chat", "chat"])
    for changes in ({"slots": 1}, {"ends_at": soon(30)}, {"ends_at": soon(-9)}, {"model_names": ["x"]}):
        with pytest.raises(Error), transaction.atomic():
            CapacityReservation.objects.filter(id=made.id).update(**changes)
    for rows in (CapacityReservation.objects.filter(id=made.id), ReservedHour.objects.all()):
        with pytest.raises(Error), transaction.atomic():
            rows.delete()


def test_hours_that_are_over_are_due_once(acme: Customer) -> None:
    made = reserve(acme, wanted(end=3))
    assert measured.due(soon()) == {} == measured.due(soon(1) - dt.timedelta(seconds=1))
    assert measured.due(soon(2)) == {made: [soon(), soon(1)]}
    hours = [
        ReservedHour(reservation=made, tenant_id=acme.tenant.id, starts_at=at, slots=4, available_seconds=7200)
        for at in (soon(), soon(1))
    ]
    assert measured.store(hours) == measured.store(hours) == 2 == ReservedHour.objects.count()
    assert measured.due(soon(9)) == {made: [soon(2)]}
    assert measured.first_missing(acme.tenant.id, soon(), soon(9)) == soon(2)
    assert measured.first_missing(acme.tenant.id, soon(), soon(2)) is None
    [found] = measured.in_time(acme.tenant.id, soon(1), soon(9))
    assert (found.hours, found.available_seconds) == (1, 7200)
    assert measured.since(soon()) == {made.id: (14_400, 28_800)}


def test_no_hour_is_reserved_once_the_tenant_is_archived(acme: Customer) -> None:
    made = reserve(acme, wanted())
    Tenant.objects.filter(id=acme.tenant.id).update(
        archived_at=soon(1) + dt.timedelta(minutes=30), state=Tenant.State.ARCHIVED
    )
    assert measured.due(soon(9)) == {made: [soon()]}


def test_a_month_begins_with_its_first_full_hour_in_the_tenants_zone() -> None:
    assert reading.moment("from", "2026-12", "UTC") == dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
    assert reading.moment("from", "2026-12", "Asia/Kathmandu") == dt.datetime(2026, 11, 30, 19, tzinfo=dt.UTC)
    assert reading.moment("from", "2026-12-01T10:00+02:00", "UTC") == dt.datetime(2026, 12, 1, 8, tzinfo=dt.UTC)
    for text in ("", "soon", "2026-13", "2026-12-01", "2026-12-01T00:00", "9999-12-31T23:00-23:00", "\0"):
        with pytest.raises(ReservationRefused, match="is no time"):
            reading.moment("from", text, "UTC")


def test_a_price_is_exact() -> None:
    assert (reading.price("2.50"), reading.price("0"), reading.price("0.000000000001")) == (2_500_000_000_000, 0, 1)
    for text in ("", "x", "-1", "NaN", "1e7", "0.0000000000001", "1" * 5000):
        with pytest.raises(ReservationRefused, match="is no price"):
            reading.price(text)
