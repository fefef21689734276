"""The list of tenants, one tenant's policy, and suspending and resuming a tenant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext, gettext_noop
from django.views.decorators.http import require_GET, require_http_methods

from billing.ledger.rollups import Sums
from billing.reports import usage
from portal.access.principal import Principal, tenant_for, tenants_of
from portal.errors import BadQuery
from portal.formats import query_params
from portal.formats.table_csv import most
from portal.forms.base import PageForm
from portal.forms.billing.cost_centres import CostCentreForm
from portal.forms.policy import PolicyForm
from portal.forms.retention import EraseForm
from portal.forms.tenants import NewTenantForm, RegionsForm
from portal.pages.base import form_action, operator_page, page, period_of, show, submit, with_query
from portal.pages.usage import PLATFORM_CURRENCY, UsageRow, presets
from portal.reporting import periods
from tenants import cost_centres, registry
from tenants.database.rls import as_tenant
from tenants.errors import AlreadyExists, BadName, NotAllowed, NotFound
from tenants.ids import TenantId
from tenants.models import Tenant, TenantPolicy
from workers.fleet import pools

#: How many versions of the policy the page shows.
MAX_VERSIONS = 20
#: Tenants that are listed unless all are asked for.
MOST_ROWS = 100
#: The states that the list can be narrowed to; without one, archived tenants are left out.
LISTED_STATES = {
    "active": "active",
    "suspended": "suspended",
    "archived": "archived",
    "all": gettext_noop("all states"),
}
#: The columns of the list that sort it, with their label; all but the name put the largest number first.
SORTS: Mapping[str, tuple[str, Callable[[UsageRow], float] | None]] = {
    "name": (gettext_noop("Tenant"), None),
    "requests": (gettext_noop("Requests"), lambda row: row.sums.requests),
    "tokens-in": (gettext_noop("Prompt tokens"), lambda row: row.tokens_in),
    "tokens-out": (gettext_noop("Completion tokens"), lambda row: row.sums.completion_tokens),
    "prediction-rate": (gettext_noop("Prediction hit rate"), lambda row: row.prediction_hit_rate or 0.0),
    "prefix-rate": (gettext_noop("Prefix hit rate"), lambda row: row.prefix_hit_rate or 0.0),
    "billed": (gettext_noop("Billed"), lambda row: row.sums.amount_pico),
    "saved-prediction": (gettext_noop("Saved by prediction cache"), lambda row: row.sums.saved_prediction_pico),
    "saved-prefix": (gettext_noop("Saved by prefix cache"), lambda row: row.sums.saved_prefix_pico),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SortColumn:
    """One column's heading. ``query`` sorts the list by it."""

    key: str
    label: str
    is_chosen: bool
    query: str


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """List tenants with their usage of the period; archived ones only on request."""
    return _show_tenants(request, principal, NewTenantForm())


def _show_tenants(request: HttpRequest, principal: Principal, form: NewTenantForm) -> HttpResponse:
    period = period_of(request, default="30d")
    used = {each.tenant_id: each.sums for each in usage.by_tenant(period)}
    requests = sum(sums.requests for sums in used.values())
    found, sort = _asked_for(request, tenants_of(principal)), _one_of(request, "sort", tuple(SORTS)) or "name"
    rows = [_row(tenant, used.get(TenantId(tenant.id), Sums()), requests, period) for tenant in found]
    if (key := SORTS[sort][1]) is not None:
        rows.sort(key=lambda row: key(row["usage"]), reverse=True)
    listed = rows if "all" in request.GET else rows[: most(request, "tenants", MOST_ROWS)]
    context = {
        "rows": listed,
        "count": len(rows),
        "left_out": len(rows) - len(listed),
        "all_query": with_query(request, all="1"),
        "columns": [
            SortColumn(key=name, label=label, is_chosen=name == sort, query=with_query(request, sort=name))
            for name, (label, _) in SORTS.items()
        ],
        "chosen": request.GET,
        "kept": [(name, request.GET[name]) for name in ("period", "from", "to", "sort", "all") if name in request.GET],
        "states": LISTED_STATES,
        "archived": tenants_of(principal).filter(state=Tenant.State.ARCHIVED).count(),
        "archived_query": with_query(request, state=Tenant.State.ARCHIVED.value),
        "period": period,
        "periods": presets(request, period),
        "currency": PLATFORM_CURRENCY,
        "form": form,
    }
    status = 400 if form.errors else 200
    return show(request, principal, "portal/tenants.html", context, active="tenants", status=status)


@form_action("portal:tenants")
@operator_page
def create(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Create a tenant and redirect to its keys."""
    form = NewTenantForm(request.POST)
    if form.is_valid():
        slug, name = form.cleaned_data["slug"], form.cleaned_data["name"]
        try:
            tenant = registry.create_tenant(principal.actor, slug=slug, name=name or slug)
        except (AlreadyExists, BadName) as error:
            form.refuse(error)
        else:
            messages.success(
                request,
                gettext(
                    "%(name)s was created. Create a key so that it can send requests, and let its owner in: invite "
                    "them under Members, or set their company's provider under Sign-in."
                )
                % {"name": tenant.name},
            )
            return redirect("portal:keys", slug=tenant.slug)
    return _show_tenants(request, principal, form)


@require_http_methods(["GET", "POST"])
@page
def policy(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Show the current policy and earlier versions; let operators change it."""
    tenant = tenant_for(principal, slug)
    with as_tenant(TenantId(tenant.id)):
        current = registry.policy_of(tenant)
    form = PolicyForm(request.POST if request.method == "POST" else None, policy=current)
    if request.method == "POST":
        if not principal.is_operator:
            raise NotFound("page", request.path)

        def change() -> str:
            registry.set_policy(principal.actor, tenant, **form.changes())
            return gettext_noop("Saved. Every gateway applies it within a second.")

        done = submit(request, form, change, back="portal:policy", slug=slug)
        if done is not None:
            return done
    return _show_policy(request, principal, tenant, form=form)


def _show_policy(
    request: HttpRequest,
    principal: Principal,
    tenant: Tenant,
    *,
    form: PolicyForm | None = None,
    regions_form: RegionsForm | None = None,
    cost_centre_form: CostCentreForm | None = None,
) -> HttpResponse:
    """Show the page, with the form that was refused if there is one."""
    with as_tenant(TenantId(tenant.id)):
        newest = TenantPolicy.objects.filter(tenant=tenant).order_by("-version")
        versions = list(newest[: most(request, "versions", MAX_VERSIONS)])
    forms: dict[str, PageForm] = {
        "form": form or PolicyForm(policy=versions[0]),
        "regions_form": regions_form or RegionsForm(initial={"allowed_regions": tenant.allowed_regions}),
        "cost_centre_form": cost_centre_form or CostCentreForm(initial={"cost_centre": tenant.cost_centre}),
    }
    context = {"policy": versions[0], "versions": versions, "erase_form": EraseForm(slug=tenant.slug), **forms}
    status = 400 if any(each.errors for each in forms.values()) else 200
    return show(request, principal, "portal/policy.html", context, active="policy", tenant=tenant, status=status)


@form_action("portal:policy")
@operator_page
def set_regions(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Set the regions in which the tenant's requests may run."""
    tenant = tenant_for(principal, slug)
    form = RegionsForm(request.POST)

    def change() -> str:
        regions = form.cleaned_data["allowed_regions"]
        pools.require_regions(regions)
        registry.set_regions(principal.actor, tenant, regions)
        return gettext_noop("Saved. Every gateway applies it within a second.")

    done = submit(request, form, change, back="portal:policy", slug=slug)
    if done is not None:
        return done
    return _show_policy(request, principal, tenant, regions_form=form)


@form_action("portal:policy")
@operator_page
def set_cost_centre(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Set the tenant's cost centre."""
    tenant = tenant_for(principal, slug)
    form = CostCentreForm(request.POST)

    def change() -> str:
        cost_centres.set_of_tenant(principal.actor, tenant, form.cleaned_data["cost_centre"])
        return gettext_noop(
            "Saved. Reports use it for usage of any time; the journal and FOCUS keep the one of closed months."
        )

    done = submit(request, form, change, back="portal:policy", slug=slug)
    return _show_policy(request, principal, tenant, cost_centre_form=form) if done is None else done


@form_action("portal:policy")
@operator_page
def set_state(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Suspend or resume the tenant."""
    tenant = tenant_for(principal, slug)
    try:
        if request.POST.get("state") == Tenant.State.SUSPENDED:
            registry.suspend(principal.actor, tenant)
            messages.success(
                request,
                gettext("%(name)s is suspended: its requests are refused within a second.") % {"name": tenant.name},
            )
        else:
            registry.resume(principal.actor, tenant)
            messages.success(request, gettext("%(name)s is active again.") % {"name": tenant.name})
    except NotAllowed as error:
        messages.error(
            request,
            gettext("%(name)s is %(state)s. This cannot be undone.") % {"name": tenant.name, "state": error.state},
        )
    return redirect("portal:policy", slug=tenant.slug)


@form_action("portal:policy")
@operator_page
def archive(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Archive the tenant, for good."""
    tenant = registry.archive(principal.actor, tenant_for(principal, slug))
    messages.success(
        request,
        gettext("%(name)s is archived: its requests are refused within a second. Its usage stays.")
        % {"name": tenant.name},
    )
    return redirect("portal:policy", slug=tenant.slug)


def _asked_for(request: HttpRequest, tenants: QuerySet[Tenant]) -> QuerySet[Tenant]:
    """Return the tenants whose slug or name contains the text asked for, in the state asked for, by slug."""
    state, text = _one_of(request, "state", tuple(LISTED_STATES)), query_params.text(request.GET, "q")
    if state is None:
        tenants = tenants.exclude(state=Tenant.State.ARCHIVED)
    elif state != "all":
        tenants = tenants.filter(state=state)
    return tenants.filter(Q(slug__icontains=text) | Q(name__icontains=text)) if text else tenants


def _one_of(request: HttpRequest, name: str, allowed: Sequence[str]) -> str | None:
    value = request.GET.get(name) or None
    if value is not None and value not in allowed:
        raise BadQuery(name, value, f"one of {', '.join(allowed)}")
    return value


def _row(tenant: Tenant, sums: Sums, requests: int, period: periods.Period) -> dict[str, Any]:
    link = f"{reverse('portal:tenant', args=[tenant.slug])}?{period.query}"
    share = sums.requests / requests if requests else 0.0
    return {"tenant": tenant, "usage": UsageRow(name=tenant.slug, sums=sums, share=share, link=link)}
