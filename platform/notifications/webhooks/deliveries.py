"""Make, claim, record and replay deliveries. At least once: a process that dies leaves its claim to the next one.

An endpoint is claimed as a whole, so at most one process sends to it. One that fails pauses, and those that were tried
last come last: an endpoint that does not answer costs the others nothing but one place for 10 seconds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from notifications import event_types, outbox
from notifications.models import Delivery, DeliveryAttempt, Event, WebhookEndpoint
from notifications.webhooks import endpoints, retries
from notifications.webhooks.sender import Result
from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.models import Tenant

#: How long a claim holds if its process says nothing: longer than it may take to send one.
CLAIM = dt.timedelta(seconds=60)
#: Events of one replay.
MOST_REPLAYED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A delivery that this process sends now, with its endpoint."""

    delivery: Delivery
    endpoint: WebhookEndpoint


def make(event: Event) -> int:
    """Make a delivery of an event for each endpoint that wants it; return how many."""
    wanted = WebhookEndpoint.objects.filter(_receives(event)).filter(disabled_at=None)
    rows = [Delivery(endpoint=endpoint, event=event, tenant_id=endpoint.tenant_id) for endpoint in wanted]
    Delivery.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


@transaction.atomic
def claim(most: int, now: dt.datetime | None = None) -> list[Claim]:
    """Claim up to ``most`` endpoints that have a delivery that is due; return the one that waited longest of each."""
    now = now or timezone.now()
    due = Delivery.objects.filter(state=Delivery.State.PENDING, next_attempt_at__lte=now)
    rows = (
        WebhookEndpoint.objects.filter(Exists(due.filter(endpoint=OuterRef("pk"))), is_paused=False, disabled_at=None)
        .filter(Q(resume_at=None) | Q(resume_at__lte=now), Q(busy_until=None) | Q(busy_until__lte=now))
        .order_by(F("last_tried_at").asc(nulls_first=True), "id")
        .select_for_update(skip_locked=True)[:most]
    )
    found = []
    for endpoint in rows:
        delivery = due.filter(endpoint=endpoint).select_related("event").order_by("next_attempt_at", "id").first()
        if delivery is None:  # another process took it before this one locked the endpoint
            continue
        endpoint.busy_until, endpoint.last_tried_at = now + CLAIM, now
        endpoint.save(update_fields=["busy_until", "last_tried_at"])
        found.append(Claim(delivery=delivery, endpoint=endpoint))
    return found


@transaction.atomic
def record(claimed: Claim, result: Result) -> None:
    """Write the attempt to the log, decide what follows, and release the endpoint. Nothing for one that is gone."""
    rows = WebhookEndpoint.objects.select_for_update(of=("self",)).select_related("tenant")
    endpoint = rows.filter(id=claimed.endpoint.id).first()
    delivery = Delivery.objects.select_for_update().filter(id=claimed.delivery.id).first()
    if endpoint is None or delivery is None:
        return
    DeliveryAttempt.objects.create(
        delivery=delivery,
        tenant_id=delivery.tenant_id,
        began_at=result.began_at,
        duration_ms=result.duration_ms,
        status=result.status,
        answer=result.answer,
        error=result.error,
    )
    now = timezone.now()
    delivery.attempts += 1
    if result.is_accepted:
        delivery.state, delivery.finished_at = Delivery.State.DELIVERED, now
        endpoint.failures, endpoint.failing_since, endpoint.resume_at = 0, None, None
    else:
        _fail(endpoint, delivery, now)
    endpoint.busy_until = None
    delivery.save()
    endpoint.save(update_fields=["busy_until", "failures", "failing_since", "resume_at", "disabled_at"])


def _fail(endpoint: WebhookEndpoint, delivery: Delivery, now: dt.datetime) -> None:
    endpoint.failures += 1
    endpoint.failing_since = endpoint.failing_since or now
    endpoint.resume_at = now + dt.timedelta(seconds=retries.pause_seconds(endpoint.failures))
    delivery.next_attempt_at = now + dt.timedelta(seconds=retries.delivery_seconds(delivery.attempts))
    if now - delivery.begun_at < retries.GIVEN_UP_AFTER:
        return
    delivery.state, delivery.finished_at = Delivery.State.DEAD, now
    if now - endpoint.failing_since < retries.GIVEN_UP_AFTER or endpoint.disabled_at is not None:
        return
    endpoint.disabled_at = now
    outbox.emit(
        event_types.WEBHOOK_ENDPOINT_DISABLED,
        tenant=endpoint.tenant,
        subject=("webhook", endpoint.id),
        data={
            "endpoint": str(endpoint.id),
            "url": endpoints.url_without_query(endpoint.url),
            "failing_since": endpoint.failing_since.isoformat(),
        },
        dedupe_key=f"{endpoint.id} {now.isoformat()}",
    )


@transaction.atomic
def test(actor: Actor, endpoint: WebhookEndpoint) -> Delivery:
    """Send an endpoint an event that says that it is a test; nobody else gets it. Raises NotAllowed."""
    _require_sending(endpoint)
    delivery_id = Delivery().id
    event = outbox.emit(
        event_types.WEBHOOK_ENDPOINT_TESTED,
        tenant=endpoint.tenant,
        subject=("webhook", endpoint.id),
        data={"endpoint": str(endpoint.id), "requested_by": actor.name},
        dedupe_key=str(delivery_id),
    )
    assert event is not None  # its key is new
    Event.objects.filter(id=event.id).update(dispatched_at=timezone.now())
    audit.record(
        actor, "webhook.tested", ("webhook", endpoint.id), tenant=endpoint.tenant, after={"event": str(event.id)}
    )
    return Delivery.objects.create(id=delivery_id, endpoint=endpoint, event=event, tenant_id=endpoint.tenant_id)


@transaction.atomic
def replay(actor: Actor, endpoint: WebhookEndpoint, delivery_id: UUID) -> Delivery:
    """Send one event again, whatever came of it before. Raises NotFound, NotAllowed."""
    _require_sending(endpoint)
    found = Delivery.objects.select_for_update().filter(endpoint=endpoint, id=delivery_id).first()
    if found is None:
        raise NotFound("delivery", str(delivery_id))
    _begin_again(Delivery.objects.filter(id=found.id))
    _record_replay(actor, endpoint, {"delivery": str(found.id)})
    return Delivery.objects.select_related("event").get(id=found.id)


@transaction.atomic
def replay_between(actor: Actor, endpoint: WebhookEndpoint, since: dt.datetime, until: dt.datetime) -> int:
    """Send every event from ``since`` to before ``until`` that the endpoint has chosen; return how many.

    Also those that happened before the endpoint was made. Raises BadName for a range that is empty or has more than
    MOST_REPLAYED events, NotAllowed for an endpoint that is not sent to.
    """
    _require_sending(endpoint)
    if since >= until:
        raise BadName("range", f"{since.isoformat()} to {until.isoformat()}", "a beginning before its end")
    within = Event.objects.filter(_received_by(endpoint), created_at__gte=since, created_at__lt=until)
    ids = list(within.order_by("id").values_list("id", flat=True)[: MOST_REPLAYED + 1])
    if len(ids) > MOST_REPLAYED:
        raise BadName("range", f"more than {MOST_REPLAYED} events", "a shorter range")
    rows = [Delivery(endpoint=endpoint, event_id=each, tenant_id=endpoint.tenant_id) for each in ids]
    Delivery.objects.bulk_create(rows, ignore_conflicts=True)
    _begin_again(Delivery.objects.filter(endpoint=endpoint, event_id__in=ids))
    _record_replay(actor, endpoint, {"since": since.isoformat(), "until": until.isoformat(), "events": len(ids)})
    return len(ids)


def of(endpoint: WebhookEndpoint, states: Sequence[str] = ()) -> QuerySet[Delivery]:
    """Return an endpoint's deliveries with their events, the newest first: in these states, or all."""
    rows = Delivery.objects.filter(endpoint=endpoint).select_related("event").order_by("-id")
    return rows.filter(state__in=states) if states else rows


def _receives(event: Event) -> Q:
    """Return the condition for endpoints that want an event: the tenant's and the operators'."""
    chosen = Q(event_types=[]) | Q(event_types__contains=[event.type])
    whose = Q(tenant=None)
    if event.tenant is not None and event.tenant.state != Tenant.State.ARCHIVED:
        whose |= Q(tenant=event.tenant)
    return chosen & whose


def _received_by(endpoint: WebhookEndpoint) -> Q:
    chosen = ~Q(type=event_types.WEBHOOK_ENDPOINT_TESTED.name)
    if endpoint.event_types:
        chosen &= Q(type__in=endpoint.event_types)
    return chosen if endpoint.tenant_id is None else chosen & Q(tenant_id=endpoint.tenant_id)


def _begin_again(rows: QuerySet[Delivery]) -> None:
    now = timezone.now()
    rows.update(state=Delivery.State.PENDING, attempts=0, begun_at=now, next_attempt_at=now, finished_at=None)


def _require_sending(endpoint: WebhookEndpoint) -> None:
    state = endpoints.state_of(endpoint)
    if state in {"paused", "disabled"}:
        raise NotAllowed("webhook endpoint", str(endpoint.id), f"{state}; resume it first")


def _record_replay(actor: Actor, endpoint: WebhookEndpoint, after: dict[str, object]) -> None:
    audit.record(actor, "webhook.replayed", ("webhook", endpoint.id), tenant=endpoint.tenant, after=after)
