"""Every page of the portal, and the request log with each of its filters, as an operator and a member open them.

Run in an instance's environment, after ``django.setup()``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.test import Client
from django.utils import timezone

from benchmarks.portal.seeding import LARGEST, SMALL

PAGE_MS, LOG_MS = 150.0, 300.0
#: Pages of a period, beside the one that they open with.
PERIODS = ("7d", "90d")
OF_PERIODS = frozenset({"overview", "usage-by", "all-savings", "routing", "tenant", "tenant-usage", "savings"})
LOGS = frozenset({"requests", "tenant-requests"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One address that somebody opens. ``target_ms`` None: it has no target, as a file."""

    who: str
    what: str
    url: str
    target_ms: float | None


def clients() -> dict[str, Client]:
    """Return a signed-in browser of an operator, and of the owners of the largest and of a small tenant."""
    from tenants.models import User

    people = {"operator": "bench", "owner": f"{LARGEST}-owner", "small owner": f"{SMALL}-owner"}
    found = {}
    for who, name in people.items():
        found[who] = Client(SERVER_NAME="localhost")
        found[who].force_login(User.objects.get(username=name))
    return found


def addresses(browsers: dict[str, Client], only: str = "") -> list[Address]:
    """Return the addresses that answer 200 to each of them. Pages of other people, and forms, do not.

    ``only``: a regular expression for who and what.
    """
    found = [address for who in browsers for address in _of(who) if re.search(only, f"{who} {address.what}")]
    return [each for each in found if browsers[each.who].get(each.url).status_code == 200]


def _of(who: str) -> Iterator[Address]:
    from billing.reports.breakdown import BY
    from portal import urls

    slug = SMALL if who == "small owner" else LARGEST
    names = _names(slug)
    yield from _searches(who, slug)
    for pattern in urls.urlpatterns:
        path = str(pattern.pattern)
        if who != "operator" and "<slug:slug>" not in path:
            continue
        wanted = re.findall(r"<\w+:(\w+)>", path)
        if not names.keys() >= set(wanted) or pattern.name in {"login", "logout", "invitation"}:
            continue
        url = "/portal/" + re.sub(r"<\w+:(\w+)>", lambda found: str(names[found[1]]), path)
        is_file = (pattern.name is not None and pattern.name.endswith("csv")) or path.endswith(".csv")
        target = None if is_file else LOG_MS if pattern.name in LOGS else PAGE_MS
        yield Address(who=who, what=pattern.name or path, url=url, target_ms=target)
        if pattern.name in OF_PERIODS:
            for period in PERIODS:
                yield Address(who=who, what=f"{pattern.name}, {period}", url=f"{url}?period={period}", target_ms=target)
        if pattern.name in {"usage-by", "tenant-usage"}:
            for by in BY:
                yield Address(
                    who=who, what=f"{pattern.name}, 7d, by {by}", url=f"{url}?period=7d&by={by}", target_ms=target
                )
        if pattern.name in LOGS:
            for query in _filters(slug):
                yield Address(who=who, what=f"{pattern.name}, {query}", url=f"{url}?{query}", target_ms=LOG_MS)


def _searches(who: str, slug: str) -> Iterator[Address]:
    """Yield what the search box is asked for: each kind of thing that it finds, and values that nothing has."""
    from billing.models import UsageRecord
    from tenants.models import ApiKey, Tenant

    tenant = Tenant.objects.get(slug=slug)
    some = UsageRecord.objects.filter(tenant_id=tenant.id).order_by("-id").first()
    key = ApiKey.objects.filter(tenant=tenant).order_by("id").last()
    assert some is not None and key is not None
    texts = {
        "id": str(some.id)[:9],
        "client's id": "client-nothing",
        "key": f"hk_{key.public_id}",
        "name of keys": "key-1",
        "project": "default",
        "model": "model-1",
        "end user": "user-42",
        "no end user": "user-nobody",
        "tag": "app=search",
        "no tag": "app=nothing",
        "code": "engine_failed",
        "no code": "nothing_failed",
        "nothing": "zzzz",
    }
    for what, text in texts.items():
        url = f"/portal/search/?{urlencode({'q': text})}"
        yield Address(who=who, what=f"search, {what}", url=url, target_ms=LOG_MS)


def _filters(slug: str) -> Iterator[str]:
    """Yield the query of each filter: over a day, over a week, and over a week with a value that no request has."""
    from billing.models import UsageRecord
    from tenants.models import ApiKey, Tenant

    tenant = Tenant.objects.get(slug=slug)
    since = {"id__gt": _id_at(timezone.now() - timedelta(hours=12))}
    some = UsageRecord.objects.filter(tenant_id=tenant.id, **since).order_by("id").first()
    sent = UsageRecord.objects.filter(tenant_id=tenant.id, **since).exclude(client_request_id="").order_by("id").first()
    key = ApiKey.objects.filter(tenant=tenant).order_by("id").last()
    assert some is not None and key is not None
    found: dict[str, tuple[str, str]] = {
        "id": (str(some.id), "client-nothing"),
        "key": (f"hk_{key.public_id}", ""),
        "project": ("default", ""),
        "member": ("bench", "nobody"),
        "end_user": ("user-42", "user-nobody"),
        "tag": ("app=search", "app=nothing"),
        "model": ("model-1", "model-nothing"),
        "cache": ("coalesced", ""),
        "state": ("engine_error", "interrupted"),
        "code": ("engine_failed", "nothing_failed"),
        "status": ("502", "429"),
        "errors": ("platform", "client"),
        "finish": ("stop", "content_filter"),
        "route": ("prefix", "session"),
    }
    for name, (usual, missing) in found.items():
        yield urlencode({name: usual})
        yield urlencode({"period": "7d", name: usual})
        if missing:
            yield urlencode({"period": "7d", name: missing})
    if sent is not None:
        yield urlencode({"period": "7d", "id": sent.client_request_id})
    yield urlencode({"period": "7d", "id": str(some.id)[:10]})
    yield urlencode({"period": "7d", "model": "model-1", "cache": "hit", "end_user": "user-42"})
    yield urlencode({"period": "7d", "after": str(some.id)})


def _id_at(moment: Any) -> Any:
    from tenants.ids import first_id_at

    return first_id_at(moment)


def _names(slug: str) -> dict[str, Any]:
    """Return what to put for the parameters of addresses."""
    from billing.models import Invoice, UsageRecord
    from notifications.models import WebhookEndpoint
    from tenants.models import Tenant
    from workers.models import Replica

    tenant = Tenant.objects.get(slug=slug)
    request = UsageRecord.objects.filter(tenant_id=tenant.id).order_by("-id").first()
    invoice = Invoice.objects.filter(tenant_id=tenant.id).first()
    webhook = WebhookEndpoint.objects.filter(tenant_id=tenant.id).first()
    replica = Replica.objects.order_by("id").first()
    names: dict[str, Any] = {
        "slug": slug,
        "request_id": request and request.id,
        "invoice": invoice and invoice.id,
        "webhook": webhook and webhook.id,
        "replica": replica and replica.id,
        "kind": "html",
        "name": "model-0",
        "issuer": "demo",
        "month": f"{timezone.now():%Y-%m}",
    }
    return {name: value for name, value in names.items() if value is not None}
