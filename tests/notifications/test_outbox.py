"""An event exists exactly if its cause was committed, and once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, transaction

from notifications import event_types, outbox
from notifications.errors import NoTransaction, UnknownEventType, WrongEventData
from notifications.event_types import BUDGET_THRESHOLD_REACHED, EventType
from notifications.models import Event
from tenants.models import Tenant
from tests.tenants.customers import Customer


def example(event_type: EventType = BUDGET_THRESHOLD_REACHED) -> dict[str, Any]:
    """Return data with a text in each field."""
    return dict.fromkeys(event_type.fields, "text")


def emit(tenant: Tenant, key: str = "once") -> Event | None:
    """Write one event of a tenant."""
    return outbox.emit(BUDGET_THRESHOLD_REACHED, tenant=tenant, subject=("budget", 1), data=example(), dedupe_key=key)


def test_an_event_keeps_what_happened(acme: Customer) -> None:
    event = emit(acme.tenant)
    assert event is not None
    assert (event.type, event.subject, event.data) == (BUDGET_THRESHOLD_REACHED.name, "budget/1", example())
    assert (event.tenant_id, event.dispatched_at) == (acme.tenant.id, None)


def test_an_event_is_written_once_for_each_tenant(acme: Customer, globex: Customer) -> None:
    assert emit(acme.tenant) is not None
    assert emit(acme.tenant) is None
    assert emit(acme.tenant, "again") is not None
    assert emit(globex.tenant) is not None
    assert Event.objects.count() == 3


def test_an_event_goes_with_the_transaction_of_its_cause(acme: Customer) -> None:
    class Failed(Exception):
        """The cause failed."""

    with pytest.raises(Failed), transaction.atomic():
        emit(acme.tenant)
        raise Failed
    assert not Event.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_an_event_outside_of_a_transaction_is_refused(acme: Customer) -> None:
    with pytest.raises(NoTransaction):
        emit(acme.tenant)


@pytest.mark.django_db(transaction=True)
def test_two_transactions_at_once_write_one_event(acme: Customer) -> None:
    written: list[Event | None] = []

    def second() -> None:
        with transaction.atomic():
            written.append(emit(acme.tenant))
        connection.close()

    other = threading.Thread(target=second)
    with transaction.atomic():
        written.append(emit(acme.tenant))
        other.start()
    other.join()
    assert [event is not None for event in written] == [True, False]
    assert Event.objects.count() == 1


@pytest.mark.parametrize("given", [{}, {"percent": 1}, example() | {"prompt": "secret"}])
def test_data_that_the_type_does_not_describe_is_refused(acme: Customer, given: dict[str, Any]) -> None:
    with pytest.raises(WrongEventData):
        outbox.emit(BUDGET_THRESHOLD_REACHED, tenant=acme.tenant, subject=("budget", 1), data=given, dedupe_key="once")


@pytest.mark.parametrize("value", [float("nan"), object(), "x" * outbox.MOST_DATA_BYTES, "a\0b"])
def test_data_that_is_no_json_or_too_large_is_refused(acme: Customer, value: object) -> None:
    given = example() | {"percent": value}
    with pytest.raises(WrongEventData):
        outbox.emit(BUDGET_THRESHOLD_REACHED, tenant=acme.tenant, subject=("budget", 1), data=given, dedupe_key="once")


def test_a_subject_of_a_long_name_is_cut(acme: Customer) -> None:
    long = ("model", "m" * 300)
    event = outbox.emit(BUDGET_THRESHOLD_REACHED, tenant=acme.tenant, subject=long, data=example(), dedupe_key="once")
    assert event is not None and len(event.subject) == outbox.LONGEST_SUBJECT


def test_a_tenants_event_names_its_tenant(db: None) -> None:
    with pytest.raises(WrongEventData):
        outbox.emit(BUDGET_THRESHOLD_REACHED, subject=("budget", 1), data=example(), dedupe_key="once")


def test_only_registered_types_are_written(acme: Customer) -> None:
    unknown = EventType(name="hearth.budget.forgotten.v1", about="None.", fields={})
    with pytest.raises(UnknownEventType):
        outbox.emit(unknown, tenant=acme.tenant, subject=("budget", 1), data={}, dedupe_key="once")


@pytest.mark.parametrize("name", ["hearth.budget.v1", "hearth.Budget.reached.v1", "budget.reached", "hearth.a.b.v0"])
def test_a_type_has_a_noun_a_past_verb_and_a_version(name: str) -> None:
    with pytest.raises(ValueError, match=r"hearth\.<noun>"):
        EventType(name=name, about="", fields={})


def test_each_name_is_registered_once() -> None:
    assert len(event_types.BY_NAME) == len(event_types.EVENT_TYPES)
