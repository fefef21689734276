"""Plans, their versions, and which plan a tenant has in which month.

A version holds from its month until the plan's next version; a tenant's plan likewise. What holds in a month that has
begun anywhere on earth is fixed: a change takes effect with the next month. A first version, and a tenant's first plan,
may begin with the current month. What is scheduled may be replaced.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import transaction
from django.utils import timezone

from billing.errors import PlanRefused
from billing.models import Plan, PlanVersion, TenantPlan
from billing.plans import terms as documents
from billing.plans.terms import Terms
from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.models import Tenant
from tenants.registry import SLUG

#: How far the earliest time zone is ahead of UTC.
EARLIEST_ZONE = timedelta(hours=14)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """The terms that a tenant has, from a month on. ``plan`` None: list prices alone."""

    from_month: date
    plan: str | None
    currency: str
    terms: Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A plan, its versions, the latest first, and the tenants to which it is assigned, with the month."""

    plan: Plan
    only_for: str
    versions: tuple[PlanVersion, ...]
    tenants: tuple[tuple[str, date], ...]


def find(name: str) -> Plan:
    """Return a plan. Raises NotFound."""
    found = Plan.objects.filter(name=name).first()
    if found is None:
        raise NotFound("plan", name)
    return found


def agreed(tenant_id: UUID, month: date) -> Agreed | None:
    """Return a tenant's terms in the month with this first day; None: list prices alone."""
    has = TenantPlan.objects.filter(tenant_id=tenant_id, from_month__lte=month).order_by("-from_month")
    row = has.select_related("plan").first()
    if row is None or row.plan is None:
        return None
    version = _version(row.plan, month)
    assert version is not None, "a plan is assigned from its first version on, and versions are never deleted"
    return _agreed(version.from_month, row.plan, version)


def agreements(tenant: Tenant) -> list[Agreed]:
    """Return the terms of a tenant, each with the month from which on it has them, the earliest first."""
    rows = list(TenantPlan.objects.filter(tenant_id=tenant.id).select_related("plan").order_by("from_month"))
    found = []
    for number, row in enumerate(rows, 1):
        behind = rows[number].from_month if number < len(rows) else date.max
        if row.plan is None:
            found.append(Agreed(from_month=row.from_month, plan=None, currency=tenant.currency, terms=Terms()))
            continue
        first = _version(row.plan, row.from_month)
        later = row.plan.versions.filter(from_month__gt=row.from_month, from_month__lt=behind).order_by("from_month")
        for version in [first, *later]:
            assert version is not None, "a plan is assigned from its first version on"
            found.append(_agreed(max(row.from_month, version.from_month), row.plan, version))
    return found


def latest(name: str) -> Agreed:
    """Return the latest terms of a plan. Raises NotFound."""
    plan = find(name)
    version = versions(plan)[0]
    return _agreed(version.from_month, plan, version)


@transaction.atomic
def set_terms(
    actor: Actor,
    name: str,
    terms: Terms,
    from_month: date,
    *,
    tenant: Tenant | None = None,
    currency: str | None = None,
) -> PlanVersion:
    """Set the terms of a plan from a month on; a plan of that name is created if there is none.

    ``tenant``: the only one to which the plan may be assigned. ``currency``: by default the tenant's, else USD. Raises
    PlanRefused, BadName, BadTerms for an amount that the currency does not have.
    """
    plan = _ensure(name, tenant, currency)
    documents.check_amounts(terms, plan.currency)
    now = timezone.now()
    first = plan.versions.order_by("from_month").first()
    _require_open(name, from_month, now.date(), now, begun=first is not None and first.from_month <= from_month)
    before = plan.versions.filter(from_month=from_month).first()
    version, _ = PlanVersion.objects.update_or_create(
        plan=plan, from_month=from_month, defaults={"terms": documents.document(terms)}
    )
    audit.record(
        actor,
        "plan.set",
        ("plan", name),
        before=None if before is None else before.terms,
        after={"from_month": f"{from_month:%Y-%m}", "terms": version.terms},
    )
    return version


@transaction.atomic
def assign(actor: Actor, tenant: Tenant, name: str | None, from_month: date) -> TenantPlan:
    """Give a tenant a plan from a month on; None: list prices alone. Raises PlanRefused, NotFound."""
    Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
    plan = None if name is None else find(name)
    if plan is not None:
        _require_fit(plan, tenant, from_month)
    now = timezone.now()
    rows = TenantPlan.objects.filter(tenant_id=tenant.id)
    before = rows.filter(from_month__lte=from_month).order_by("-from_month").select_related("plan").first()
    begun = before is not None and (before.plan is not None or before.from_month == from_month)
    today = now.astimezone(ZoneInfo(tenant.billing_timezone)).date()
    _require_open(name or tenant.slug, from_month, today, now, begun=begun)
    row, _ = TenantPlan.objects.update_or_create(tenant_id=tenant.id, from_month=from_month, defaults={"plan": plan})
    audit.record(
        actor,
        "plan.assigned",
        ("tenant", tenant.id),
        tenant=tenant,
        before={"plan": before.plan.name if before and before.plan else None},
        after={"plan": name, "from_month": f"{from_month:%Y-%m}"},
    )
    return row


def require_no_mention(model_name: str, new_name: str) -> None:
    """Raise NotAllowed if the present or later terms of an assigned plan are about a model and not about its new name.

    Lines have the name under which requests ran, so these terms would end without a word.
    """
    for plan in Plan.objects.filter(tenants__isnull=False).distinct().order_by("name"):
        now = _version(plan, (timezone.now() - EARLIEST_ZONE).date())
        since = now.from_month if now else date.min
        for version in plan.versions.filter(from_month__gte=since).order_by("from_month"):
            terms = documents.read(version.terms)
            for scope in (*terms.allowances, *terms.tiers, *terms.discounts):
                if model_name in scope.models and new_name not in scope.models:
                    named = f"named by the terms of plan {plan.name!r} from {version.from_month:%Y-%m}"
                    mend = f"set terms from a later month that name {new_name!r} too"
                    raise NotAllowed("model", model_name, f"{named}: {mend}")


def versions(plan: Plan) -> list[PlanVersion]:
    """Return a plan's versions, the latest first."""
    return list(plan.versions.select_related("plan").order_by("-from_month"))


def listed() -> list[Listed]:
    """Return all plans by name."""
    slugs = dict(Tenant.objects.values_list("id", "slug"))
    of_plan: dict[UUID, list[PlanVersion]] = defaultdict(list)
    for version in PlanVersion.objects.order_by("-from_month"):
        of_plan[version.plan_id].append(version)
    tenants: dict[UUID, list[tuple[str, date]]] = defaultdict(list)
    for row in TenantPlan.objects.exclude(plan=None).order_by("from_month"):
        assert row.plan_id is not None
        tenants[row.plan_id].append((slugs[row.tenant_id], row.from_month))
    return [
        Listed(
            plan=plan,
            only_for=slugs.get(plan.tenant_id, "") if plan.tenant_id else "",
            versions=tuple(of_plan[plan.id]),
            tenants=tuple(tenants[plan.id]),
        )
        for plan in Plan.objects.order_by("name")
    ]


def _agreed(from_month: date, plan: Plan, version: PlanVersion) -> Agreed:
    return Agreed(from_month=from_month, plan=plan.name, currency=plan.currency, terms=documents.read(version.terms))


def _version(plan: Plan, month: date) -> PlanVersion | None:
    return plan.versions.filter(from_month__lte=month).order_by("-from_month").first()


def _ensure(name: str, tenant: Tenant | None, currency: str | None) -> Plan:
    """Return the plan of this name, locked. Raises PlanRefused if it is another tenant's or in another currency."""
    if not SLUG.fullmatch(name):
        raise BadName("plan", name, "a-z, 0-9 and -, at most 63")
    defaults: dict[str, Any] = {
        "tenant_id": tenant and tenant.id,
        "currency": currency or (tenant.currency if tenant else "USD"),
    }
    Plan.objects.get_or_create(name=name, defaults=defaults)
    plan = Plan.objects.select_for_update(no_key=True).get(name=name)
    if tenant is not None and plan.tenant_id != tenant.id:
        raise PlanRefused(name, f"it is not of {tenant.slug} alone", "Use another name.")
    if currency is not None and plan.currency != currency:
        raise PlanRefused(name, f"it is in {plan.currency}", "Use another name.")
    return plan


def _require_fit(plan: Plan, tenant: Tenant, from_month: date) -> None:
    if plan.tenant_id not in {None, tenant.id}:
        raise PlanRefused(plan.name, "it is another tenant's", f"Set a plan for {tenant.slug}.")
    if plan.currency != tenant.currency:
        raise PlanRefused(
            plan.name, f"it is in {plan.currency}, {tenant.slug} pays in {tenant.currency}", "Set one in that currency."
        )
    if _version(plan, from_month) is None:
        first = plan.versions.order_by("from_month").first()
        since = f"its first terms are from {first.from_month:%Y-%m}" if first else "it has no terms"
        raise PlanRefused(plan.name, since, "Assign it from then on.")


def _require_open(name: str, from_month: date, today: date, now: datetime, *, begun: bool) -> None:
    """Raise PlanRefused for a month that is past, or that has begun with terms of its own."""
    if from_month < today.replace(day=1):
        raise PlanRefused(name, f"{from_month:%Y-%m} is past", f"Use {today:%Y-%m} or a later month.")
    if begun and from_month <= (now + EARLIEST_ZONE).date():
        raise PlanRefused(name, f"{from_month:%Y-%m} has begun, and its terms are fixed", "Use a later month.")
