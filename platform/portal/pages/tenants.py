"""The list of tenants, one tenant's policy, and suspending and resuming a tenant."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from billing.ledger.rollups import Sums
from billing.reports import usage
from portal.access.principal import Principal, tenant_for, tenants_of
from portal.formats.query_params import posted
from portal.pages.base import form_action, operator_page, page, show
from portal.pages.usage import PLATFORM_CURRENCY, UsageRow, presets
from portal.reporting import periods
from tenants import registry
from tenants.errors import AlreadyExists, BadName, NotAllowed, NotFound
from tenants.ids import TenantId
from tenants.models import Tenant, TenantPolicy
from tenants.rls import as_tenant

NUMBER_FIELDS = (
    "cache_ttl_seconds",
    "cache_entry_bytes",
    "cache_quota_bytes",
    "salt_epoch",
    "queue_seconds",
    "queue_requests",
    "queue_bytes",
    "idempotency_bytes_per_hour",
)
#: Number fields that may be empty, which means unlimited.
OPTIONAL_NUMBER_FIELDS = ("cache_writes_per_minute",)
CHOICE_FIELDS = {"cache_mode": TenantPolicy.CacheMode, "cache_scope": TenantPolicy.Scope}
#: How many versions of the policy the page shows.
MAX_VERSIONS = 20


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """List all tenants with their usage of the period."""
    period = periods.parse(request.GET, timezone.now(), default="30d")
    used = {each.tenant_id: each.sums for each in usage.by_tenant(period)}
    requests = sum(sums.requests for sums in used.values())
    rows = [_row(tenant, used.get(TenantId(tenant.id), Sums()), requests, period) for tenant in tenants_of(principal)]
    context = {"rows": rows, "period": period, "periods": presets(request), "currency": PLATFORM_CURRENCY}
    return show(request, principal, "portal/tenants.html", context, active="tenants")


@form_action("portal:tenants")
@operator_page
def create(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Create a tenant and redirect to its keys."""
    slug, name = posted(request, "slug"), posted(request, "name")
    try:
        tenant = registry.create_tenant(principal.actor, slug=slug, name=(name or slug)[:200])
    except AlreadyExists:
        messages.error(request, f"A tenant with the slug {slug!r} already exists.")
    except BadName as error:
        messages.error(request, f"{slug!r} is not a valid slug. Use {error.allowed}.")
    else:
        messages.success(request, f"{tenant.name} was created. Create a key so that it can send requests.")
        return redirect("portal:keys", slug=tenant.slug)
    return redirect("portal:tenants")


@require_http_methods(["GET", "POST"])
@page
def policy(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Show the current policy and earlier versions; let operators change it."""
    tenant = tenant_for(principal, slug)
    if request.method == "POST":
        if not principal.is_operator:
            raise NotFound("page", request.path)
        try:
            registry.set_policy(principal.actor, tenant, **_submitted_policy(request))
            messages.success(request, "Saved. Every gateway applies it within a second.")
        except BadName as error:
            messages.error(
                request, f"Nothing was changed: {error.kind} {error.name!r} is not valid. Use {error.allowed}."
            )
        return redirect("portal:policy", slug=tenant.slug)
    with as_tenant(TenantId(tenant.id)):
        versions = list(TenantPolicy.objects.filter(tenant=tenant).order_by("-version")[:MAX_VERSIONS])
    context = {"policy": versions[0], "versions": versions, "choices": CHOICE_FIELDS}
    return show(request, principal, "portal/policy.html", context, active="policy", tenant=tenant)


@form_action("portal:policy")
@operator_page
def set_state(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Suspend or resume the tenant."""
    tenant = tenant_for(principal, slug)
    try:
        if request.POST.get("state") == Tenant.State.SUSPENDED:
            registry.suspend(principal.actor, tenant)
            messages.success(request, f"{tenant.name} is suspended: its requests are refused within a second.")
        else:
            registry.resume(principal.actor, tenant)
            messages.success(request, f"{tenant.name} is active again.")
    except NotAllowed as error:
        messages.error(request, f"{tenant.name} is {error.state}. This cannot be undone.")
    return redirect("portal:policy", slug=tenant.slug)


@form_action("portal:policy")
@operator_page
def archive(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Archive the tenant, for good."""
    tenant = registry.archive(principal.actor, tenant_for(principal, slug))
    messages.success(request, f"{tenant.name} is archived: its requests are refused within a second. Its usage stays.")
    return redirect("portal:policy", slug=tenant.slug)


def _row(tenant: Tenant, sums: Sums, requests: int, period: periods.Period) -> dict[str, Any]:
    link = f"{reverse('portal:tenant', args=[tenant.slug])}?{period.query}"
    share = sums.requests / requests if requests else 0.0
    return {"tenant": tenant, "usage": UsageRow(name=tenant.slug, sums=sums, share=share, link=link)}


def _submitted_policy(request: HttpRequest) -> dict[str, Any]:
    """Return the fields of the form. An empty number means unlimited where that is possible, else no change.

    Raises BadName for text that is not a whole number.
    """
    fields: dict[str, Any] = {name: posted(request, name) for name in CHOICE_FIELDS if name in request.POST}
    for name in (*NUMBER_FIELDS, *OPTIONAL_NUMBER_FIELDS):
        text = posted(request, name)
        if not text:
            if name in OPTIONAL_NUMBER_FIELDS and name in request.POST:
                fields[name] = None
            continue
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise BadName(name, text, "a whole number")
        fields[name] = int(text)
    return fields
