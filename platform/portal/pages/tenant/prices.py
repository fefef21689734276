"""The prices that a tenant pays: of each model that it may call, and the terms of its plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Literal
from zoneinfo import ZoneInfo

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from billing.plans import registry, wording
from billing.pricing import prices
from billing.pricing.rating import Price
from catalogue.models import Model
from portal.access.principal import Principal, tenant_for
from portal.pages.base import page, show
from reserved_capacity import listing
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Tenant
from tenants.registry import policy_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceDisplay:
    """A model with a price of it; None: it has none."""

    model: str
    price: Price | None
    state: Literal["current", "scheduled"] = "current"


@dataclass(frozen=True, slots=True, kw_only=True)
class TermsDisplay:
    """Terms in plain words, from a month on."""

    from_month: date
    plan: str | None
    words: tuple[str, ...]
    is_current: bool


@require_GET
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show the prices of each model, now and scheduled; the plan and reservations to those who see the whole tenant."""
    tenant = tenant_for(principal, slug)
    now = timezone.now()
    with as_tenant(TenantId(tenant.id)):
        priority = policy_of(tenant).priority
        rows = _prices(tenant, now, priority)
        whole = principal.sees_whole(tenant.id)
        terms, reserved = (_terms(tenant, now), listing.read([tenant.id], with_ended=False)) if whole else ([], [])
    context = {"rows": rows, "terms": terms, "priority": priority, "reservations": reserved}
    return show(request, principal, "portal/tenant_prices.html", context, active="tenant-prices", tenant=tenant)


def _prices(tenant: Tenant, now: datetime, priority: str) -> list[PriceDisplay]:
    names = sorted(
        Model.objects.filter(archived_at=None)
        .filter(Q(visibility=Model.Visibility.PUBLIC) | Q(owner=tenant) | Q(shared_with__contains=[tenant.id]))
        .values_list("name", flat=True)
    )
    table = prices.table_for([tenant.id], names)
    rows = []
    for name in names:
        current = table.at(tenant.id, name, now)
        rows.append(PriceDisplay(model=name, price=current and _at(current, priority)))
        rows += [
            PriceDisplay(model=name, price=_at(each, priority), state="scheduled")
            for each in table.scheduled(tenant.id, name, now)
        ]
    return rows


def _at(price: Price, priority: str) -> Price:
    return replace(price, rates=price.rates.at(priority))


def _terms(tenant: Tenant, now: datetime) -> list[TermsDisplay]:
    found = registry.agreements(tenant)
    today = now.astimezone(ZoneInfo(tenant.billing_timezone)).date()
    begun = [each.from_month for each in found if each.from_month <= today]
    return [
        TermsDisplay(
            from_month=each.from_month,
            plan=each.plan,
            words=wording.sentences(each.terms, each.currency),
            is_current=bool(begun) and each.from_month == begun[-1],
        )
        for each in found
    ]
