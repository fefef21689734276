"""Events reach the endpoints that want them: signed, logged, tried again, given up, and replayed."""

from __future__ import annotations

import datetime as dt
import json
import threading
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from notifications import dispatch, keeping, tasks
from notifications.event_types import BUDGET_EXHAUSTED, WEBHOOK_ENDPOINT_DISABLED, WEBHOOK_ENDPOINT_TESTED
from notifications.models import Delivery, DeliveryAttempt, Event, WebhookEndpoint
from notifications.webhooks import deliveries, endpoints, retries
from notifications.webhooks.sender import Result
from tenants import registry
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.ids import first_id_at
from tenants.models import AuditEntry, Tenant
from tests.notifications.webhooks.conftest import happen
from tests.notifications.webhooks.receiver import Receiver, listening
from tests.tenants.customers import OPERATOR, Customer

pytestmark = pytest.mark.django_db
DAYS = dt.timedelta(days=1)


def endpoint_of(tenant: Tenant | None, receiver: Receiver, **options: Any) -> WebhookEndpoint:
    return endpoints.create(OPERATOR, tenant, url=receiver.url, **options).endpoint


def come_due() -> None:
    """Let what waits for its next attempt, and endpoints that pause, be tried now."""
    Delivery.objects.filter(state="pending").update(next_attempt_at=timezone.now())
    WebhookEndpoint.objects.update(resume_at=None)


def log(endpoint: WebhookEndpoint) -> list[DeliveryAttempt]:
    return list(DeliveryAttempt.objects.filter(delivery__endpoint=endpoint).order_by("id"))


def test_a_tenant_gets_its_events_as_cloudevents(acme: Customer, globex: Customer, receiver: Receiver) -> None:
    endpoint = endpoint_of(acme.tenant, receiver)
    event = happen(acme.tenant)
    happen(globex.tenant)
    assert tasks.send() == 1
    (got,) = receiver.received
    assert (got.path, got.headers["content-type"]) == ("/hook", "application/cloudevents+json")
    assert json.loads(got.body) == {
        "specversion": "1.0",
        "id": str(event.id),
        "source": f"/hearth/tenants/{acme.tenant.id}",
        "type": event.type,
        "subject": "budget/1",
        "time": event.created_at.isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "tenantid": str(acme.tenant.id),
        "data": event.data,
    }
    delivery = Delivery.objects.get(endpoint=endpoint)
    assert (delivery.state, delivery.attempts) == ("delivered", 1)
    (attempt,) = log(endpoint)
    assert (attempt.status, attempt.error, attempt.tenant_id) == (204, "", acme.tenant.id)
    assert tasks.send() == 0


def test_operators_get_events_of_every_tenant_and_each_endpoint_its_types(
    acme: Customer, globex: Customer, receiver: Receiver
) -> None:
    endpoint_of(None, receiver)
    endpoint_of(None, receiver, types=[WEBHOOK_ENDPOINT_DISABLED.name])
    happened = {str(happen(each.tenant).id) for each in (acme, globex)}
    tasks.send()
    assert [json.loads(got.body)["id"] for got in receiver.received] == sorted(happened)


def test_an_archived_tenant_gets_nothing_more(acme: Customer, receiver: Receiver) -> None:
    endpoint_of(acme.tenant, receiver)
    registry.archive(OPERATOR, acme.tenant)
    happen(Tenant.objects.get(id=acme.tenant.id))
    assert tasks.send() == 0


def test_a_failure_is_logged_and_tried_again(acme: Customer, receiver: Receiver) -> None:
    receiver.statuses, receiver.answer = [500, 302, 200], b"out of \0 order" + b"x" * 5000
    endpoint = endpoint_of(acme.tenant, receiver)
    happen(acme.tenant)
    assert tasks.send() == 1
    assert tasks.send() == 0  # it waits
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.attempts) == ("pending", 1)
    assert 7 <= (delivery.next_attempt_at - timezone.now()).total_seconds() <= 12
    assert endpoints.state_of(WebhookEndpoint.objects.get()) == "failing"
    for _ in range(2):
        come_due()
        assert tasks.send() == 1
    assert [(each.status, each.error) for each in log(endpoint)] == [
        (500, "the answer is no 2xx"),
        (302, "redirects are not followed"),
        (200, ""),
    ]
    assert log(endpoint)[0].answer == ("out of  order" + "x" * 5000)[:999]
    assert endpoints.state_of(WebhookEndpoint.objects.get()) == "active"
    assert Delivery.objects.get().state == "delivered"
    first, *_, last = receiver.received
    assert first.headers["webhook-id"] == last.headers["webhook-id"]


def test_a_redirect_is_not_followed(acme: Customer, receiver: Receiver) -> None:
    with listening() as other:
        receiver.statuses, receiver.location = [307], other.url
        endpoint_of(acme.tenant, receiver)
        happen(acme.tenant)
        tasks.send()
        assert (len(receiver.received), other.received) == (1, [])


def test_an_endpoint_that_answers_nothing_does_not_delay_another(
    acme: Customer, globex: Customer, loopback: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifications.webhooks.sender.TOTAL_SECONDS", 2.0)
    with listening(silent=threading.Event()) as dead, listening() as well:
        endpoint_of(acme.tenant, dead)
        endpoint_of(globex.tenant, well)
        for percent in range(5):
            happen(acme.tenant, percent)
            happen(globex.tenant, percent)
        tasks.send()
        assert (len(dead.received), len(well.received)) == (1, 5)
    failed = DeliveryAttempt.objects.get(tenant=acme.tenant)
    assert (failed.status, failed.error) == (None, "no answer within 2 s")


def test_two_processes_do_not_send_the_same(acme: Customer, receiver: Receiver) -> None:
    endpoint_of(acme.tenant, receiver)
    happen(acme.tenant)
    dispatch.run()
    (claimed,) = deliveries.claim(5)
    assert deliveries.claim(5) == []
    # the process that claimed it died
    assert [each.delivery for each in deliveries.claim(5, timezone.now() + 2 * deliveries.CLAIM)] == [claimed.delivery]


def test_after_three_days_a_delivery_is_dead_and_its_endpoint_disabled(acme: Customer, receiver: Receiver) -> None:
    receiver.statuses = [410]
    endpoint = endpoint_of(acme.tenant, receiver)
    happen(acme.tenant)
    tasks.send()
    long_ago = timezone.now() - retries.GIVEN_UP_AFTER - dt.timedelta(minutes=1)
    Delivery.objects.update(begun_at=long_ago)
    come_due()
    tasks.send()
    assert Delivery.objects.get().state == "dead"
    assert endpoints.state_of(WebhookEndpoint.objects.get()) == "failing"  # its first failure is young
    happen(acme.tenant)
    dispatch.run()
    Delivery.objects.update(begun_at=long_ago)
    WebhookEndpoint.objects.update(failing_since=long_ago)
    come_due()
    tasks.send()
    endpoint.refresh_from_db()
    assert endpoints.state_of(endpoint) == "disabled"
    event = Event.objects.get(type=WEBHOOK_ENDPOINT_DISABLED.name)
    assert event.data == {
        "endpoint": str(endpoint.id),
        "url": receiver.url,
        "failing_since": long_ago.isoformat(),
    }
    happen(acme.tenant)
    come_due()
    count = len(receiver.received)
    assert tasks.send() == 0
    assert len(receiver.received) == count


def test_the_waits_grow_to_hours_and_the_pause_of_an_endpoint_to_minutes() -> None:
    for attempts, seconds in ((1, 10), (2, 20), (5, 160), (30, 6 * 3600), (10**6, 6 * 3600)):
        assert 0.8 * seconds <= retries.delivery_seconds(attempts) <= 1.2 * seconds
    for failures, seconds in ((1, 10), (6, 300), (10**6, 300)):
        assert 0.8 * seconds <= retries.pause_seconds(failures) <= 1.2 * seconds


def test_a_test_reaches_only_its_endpoint(acme: Customer, receiver: Receiver) -> None:
    endpoint_of(None, receiver)
    endpoint = endpoint_of(acme.tenant, receiver, types=[WEBHOOK_ENDPOINT_DISABLED.name])
    deliveries.test(OPERATOR, endpoint)
    tasks.send()
    (got,) = receiver.received
    body = json.loads(got.body)
    assert (body["type"], body["data"]) == (
        WEBHOOK_ENDPOINT_TESTED.name,
        {"endpoint": str(endpoint.id), "requested_by": OPERATOR.name},
    )


def test_one_delivery_is_replayed(acme: Customer, globex: Customer, receiver: Receiver) -> None:
    endpoint, other = endpoint_of(acme.tenant, receiver), endpoint_of(globex.tenant, receiver)
    event = happen(acme.tenant)
    tasks.send()
    delivery = Delivery.objects.get()
    deliveries.replay(OPERATOR, endpoint, delivery.id)
    tasks.send()
    assert [got.headers["webhook-id"] for got in receiver.received] == [str(event.id)] * 2
    assert len({got.body for got in receiver.received}) == 1
    assert AuditEntry.objects.filter(action="webhook.replayed", tenant=acme.tenant).count() == 1
    for wrong, identity in ((other, delivery.id), (endpoint, uuid4())):
        with pytest.raises(NotFound):
            deliveries.replay(OPERATOR, wrong, identity)


def test_a_range_is_replayed_also_from_before_the_endpoint(
    acme: Customer, globex: Customer, receiver: Receiver
) -> None:
    events = [happen(acme.tenant), happen(acme.tenant)]
    happen(globex.tenant)
    tasks.send()
    endpoint = endpoint_of(acme.tenant, receiver)
    begin, end = timezone.now() - DAYS, timezone.now() + DAYS
    assert deliveries.replay_between(OPERATOR, endpoint, begin, end) == 2
    tasks.send()
    assert [UUID(got.headers["webhook-id"]) for got in receiver.received] == [event.id for event in events]
    assert deliveries.replay_between(OPERATOR, endpoint, begin, end) == 2
    assert Delivery.objects.count() == 2
    assert deliveries.replay_between(OPERATOR, endpoint, begin - DAYS, begin) == 0
    with pytest.raises(BadName):
        deliveries.replay_between(OPERATOR, endpoint, end, begin)


def test_a_paused_endpoint_keeps_its_deliveries_until_it_is_resumed(acme: Customer, receiver: Receiver) -> None:
    endpoint = endpoint_of(acme.tenant, receiver)
    endpoint = endpoints.change(OPERATOR, endpoint, is_paused=True)
    happen(acme.tenant)
    assert tasks.send() == 0
    with pytest.raises(NotAllowed):
        deliveries.test(OPERATOR, endpoint)
    endpoints.resume(OPERATOR, endpoint)
    assert tasks.send() == 1


def test_an_endpoint_that_is_removed_while_something_is_sent_leaves_nothing(acme: Customer, receiver: Receiver) -> None:
    endpoint = endpoint_of(acme.tenant, receiver)
    happen(acme.tenant)
    dispatch.run()
    (claimed,) = deliveries.claim(1)
    endpoints.remove(OPERATOR, endpoint)
    deliveries.record(claimed, Result(began_at=timezone.now(), duration_ms=1, status=200))
    assert not DeliveryAttempt.objects.exists()


def test_old_events_go_once_nothing_of_them_waits(acme: Customer, receiver: Receiver) -> None:
    endpoint_of(acme.tenant, receiver)
    old = first_id_at(timezone.now() - (keeping.KEPT_DAYS + 1) * DAYS)
    at = timezone.now()
    begun = [("delivered", at), ("pending", at), ("pending", at - (keeping.KEPT_DAYS + 1) * DAYS)]
    for number, (state, begun_at) in enumerate(begun):
        event = Event.objects.create(
            id=UUID(int=old.int + number),
            type=WEBHOOK_ENDPOINT_TESTED.name,
            tenant=acme.tenant,
            subject="webhook/1",
            data={},
            dedupe_key=str(number),
            dispatched_at=timezone.now(),
        )
        row = Delivery(endpoint=WebhookEndpoint.objects.get(), event=event, state=state, begun_at=begun_at)
        Delivery.objects.bulk_create([row])
    young = happen(acme.tenant)
    assert tasks.maintain() == 2
    assert [each.id for each in Event.objects.order_by("id")] == [UUID(int=old.int + 1), young.id]


def test_an_event_of_spent_money_stays_so_that_it_is_not_sent_again(acme: Customer) -> None:
    old = first_id_at(timezone.now() - (keeping.KEPT_DAYS + 1) * DAYS)
    Event.objects.create(
        id=old,
        type=BUDGET_EXHAUSTED.name,
        tenant=acme.tenant,
        subject="budget/1",
        data={},
        dedupe_key="1",
        dispatched_at=timezone.now(),
    )
    assert tasks.maintain() == 0
    assert Event.objects.filter(id=old).exists()
