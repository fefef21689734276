"""Create, change, rotate, pause and remove webhook endpoints. Every change is audited."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from notifications import event_types
from notifications.models import WebhookEndpoint, WebhookSecret
from notifications.webhooks import addresses, sealing, signatures
from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.models import Tenant

#: Of one tenant, and of the operators together: each event is sent once to each.
MOST_ENDPOINTS = 20
LONGEST_ABOUT = 200
LONGEST_OVERLAP_HOURS = 168
DEFAULT_OVERLAP_HOURS = 24
FIELDS = ("url", "about", "event_types", "is_paused")
#: First half of the advisory lock of new endpoints: "hook" in ASCII.
_LOCK = 0x686F6F6B


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSecret:
    """An endpoint and the text of its newest secret, which is shown only now."""

    endpoint: WebhookEndpoint
    secret: str


def of(tenant: Tenant | None) -> QuerySet[WebhookEndpoint]:
    """Return a tenant's endpoints, or the operators' for None."""
    return WebhookEndpoint.objects.filter(tenant=tenant).order_by("-id")


def find(tenant: Tenant | None, endpoint_id: UUID) -> WebhookEndpoint:
    """Return one of these endpoints. Raises NotFound, also for another tenant's."""
    found = of(tenant).select_related("tenant").filter(id=endpoint_id).first()
    if found is None:
        raise NotFound("webhook endpoint", str(endpoint_id))
    return found


def find_any(endpoint_id: UUID) -> WebhookEndpoint:
    """Return an endpoint, whosever it is, for an operator's command. Raises NotFound."""
    found = WebhookEndpoint.objects.select_related("tenant").filter(id=endpoint_id).first()
    if found is None:
        raise NotFound("webhook endpoint", str(endpoint_id))
    return found


def types_for(tenant: Tenant | None) -> tuple[str, ...]:
    """Return the event types that a tenant's endpoint may choose; for None, the operators'."""
    offered = (each for each in event_types.EVENT_TYPES if tenant is None or each.about_whom != "platform")
    return tuple(each.name for each in offered if each is not event_types.WEBHOOK_ENDPOINT_TESTED)


def state_of(endpoint: WebhookEndpoint) -> str:
    """Return active, failing (the last attempts failed), paused or disabled (after days of failure)."""
    if endpoint.disabled_at is not None:
        return "disabled"
    if endpoint.is_paused:
        return "paused"
    return "failing" if endpoint.failing_since is not None else "active"


@transaction.atomic
def create(actor: Actor, tenant: Tenant | None, *, url: str, about: str = "", types: Sequence[str] = ()) -> NewSecret:
    """Create an endpoint for events from now on; no types: all. Raises BadName, and NotAllowed for too many."""
    wanted = {"url": url, "about": about, "event_types": list(dict.fromkeys(types))}
    _check(tenant, wanted)
    _require_open(tenant)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    if of(tenant).count() >= MOST_ENDPOINTS:
        raise NotAllowed("webhook endpoint", url[:100], f"one of more than {MOST_ENDPOINTS}; remove another one first")
    endpoint = WebhookEndpoint.objects.create(tenant=tenant, created_by=actor.name, **wanted)
    secret = _add_secret(endpoint)
    _record(actor, "webhook.created", endpoint, after=_described(endpoint))
    return NewSecret(endpoint=WebhookEndpoint.objects.get(id=endpoint.id), secret=secret)


@transaction.atomic
def change(actor: Actor, endpoint: WebhookEndpoint, **changes: Any) -> WebhookEndpoint:
    """Change some of FIELDS. Equal values are not audited. Raises BadName, NotFound."""
    locked = _locked(endpoint)
    unknown = set(changes) - set(FIELDS)
    if unknown:
        raise BadName("webhook field", ", ".join(sorted(unknown)), ", ".join(FIELDS))
    _check(locked.tenant, changes)
    before = _described(locked)
    for field, value in changes.items():
        setattr(locked, field, value)
    if _described(locked) == before:
        return locked
    locked.save(update_fields=list(changes))
    _record(actor, "webhook.changed", locked, before=before, after=_described(locked))
    return locked


@transaction.atomic
def resume(actor: Actor, endpoint: WebhookEndpoint) -> WebhookEndpoint:
    """Send to an endpoint again that is paused, disabled or failing, from now on. Raises NotFound."""
    locked = _locked(endpoint)
    before = _described(locked)
    fresh = {"is_paused": False, "disabled_at": None, "failing_since": None, "failures": 0, "resume_at": None}
    for field, value in fresh.items():
        setattr(locked, field, value)
    locked.save(update_fields=list(fresh))
    if _described(locked) != before:
        _record(actor, "webhook.resumed", locked, before=before, after=_described(locked))
    return locked


@transaction.atomic
def rotate(actor: Actor, endpoint: WebhookEndpoint, *, overlap_hours: int = DEFAULT_OVERLAP_HOURS) -> NewSecret:
    """Give the endpoint a new secret; the earlier one also signs for ``overlap_hours``. An earlier overlap ends now.

    Raises BadName for hours out of bounds, NotFound.
    """
    if not 0 <= overlap_hours <= LONGEST_OVERLAP_HOURS:
        raise BadName("overlap_hours", str(overlap_hours), f"a whole number from 0 to {LONGEST_OVERLAP_HOURS}")
    locked = _locked(endpoint)
    WebhookSecret.objects.filter(endpoint=locked).exclude(expires_at=None).delete()
    until = timezone.now() + dt.timedelta(hours=overlap_hours)
    WebhookSecret.objects.filter(endpoint=locked, expires_at=None).update(expires_at=until)
    secret = _add_secret(locked)
    _record(actor, "webhook.secret_rotated", locked, after={"earlier_until": until.isoformat()})
    return NewSecret(endpoint=locked, secret=secret)


@transaction.atomic
def remove(actor: Actor, endpoint: WebhookEndpoint) -> None:
    """Delete an endpoint with its deliveries and their log. Raises NotFound."""
    locked = _locked(endpoint)
    _record(actor, "webhook.removed", locked, before=_described(locked))
    locked.delete()


def secrets_of(endpoint_id: UUID) -> list[str]:
    """Return the texts of the secrets that sign now, the newest first. Raises SecretUnreadable."""
    signing = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    rows = WebhookSecret.objects.filter(signing, endpoint_id=endpoint_id).order_by("-id")
    return [sealing.unseal(row.id, bytes(row.sealed), row.pepper_version) for row in rows]


def url_without_query(url: str) -> str:
    """Return a URL as logs and events may show it: a query often has a token."""
    return url.partition("?")[0]


def _add_secret(endpoint: WebhookEndpoint) -> str:
    text = signatures.new_secret()
    row = WebhookSecret(endpoint=endpoint)
    row.sealed, row.pepper_version = sealing.seal(row.id, text)
    row.save()
    return text


def _check(tenant: Tenant | None, wanted: dict[str, Any]) -> None:
    if "url" in wanted:
        addresses.check_url(wanted["url"])
    about = wanted.get("about", "")
    if len(about) > LONGEST_ABOUT or not about.isprintable():
        raise BadName("description", about[:100], f"at most {LONGEST_ABOUT} printable characters")
    offered = types_for(tenant)
    for name in wanted.get("event_types", ()):
        if name not in offered:
            raise BadName("event type", str(name)[:100], ", ".join(offered))


def _require_open(tenant: Tenant | None) -> None:
    if tenant is not None and Tenant.objects.select_for_update().get(id=tenant.id).state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", tenant.slug, "archived")


def _locked(endpoint: WebhookEndpoint) -> WebhookEndpoint:
    found = WebhookEndpoint.objects.select_for_update(of=("self",)).select_related("tenant")
    locked = found.filter(id=endpoint.id).first()
    if locked is None:
        raise NotFound("webhook endpoint", str(endpoint.id))
    _require_open(locked.tenant)
    return locked


def _described(endpoint: WebhookEndpoint) -> dict[str, Any]:
    return {
        "url": url_without_query(endpoint.url),
        "about": endpoint.about,
        "event_types": list(endpoint.event_types),
        "state": state_of(endpoint),
    }


def _record(
    actor: Actor,
    action: str,
    endpoint: WebhookEndpoint,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    audit.record(actor, action, ("webhook", endpoint.id), tenant=endpoint.tenant, before=before, after=after)
