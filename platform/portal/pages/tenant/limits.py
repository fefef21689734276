"""Budgets and limits of a tenant: what is spent and left of each budget, and the peak rate against each limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext, gettext_noop
from django.views.decorators.http import require_GET

from billing.budgets.status import BudgetStatus
from billing.reports import peak_usage
from billing.reports.peak_usage import Quarter, Rate
from portal.access.principal import Principal, tenant_for
from portal.access.rights import limit_permissions
from portal.errors import NotPermitted
from portal.formats.table_csv import most
from portal.forms.limits import BudgetForm, LimitForm, Targets
from portal.pages.base import form_action, page, show, submit, unchanged
from tenants import error_text
from tenants.database.rls import as_tenant
from tenants.errors import NotAllowed, SetByAbove
from tenants.ids import TenantId
from tenants.models import ApiKey, Budget, Limit, Project, Tenant
from tenants.policy import bound_setter, budgets, limits

MAX_ROWS = 200
#: The peak rate of a limit is that of the busiest 15 minutes in this window.
PEAK_WINDOW = timedelta(hours=24)
#: Shares of a budget from which it is shown as nearly used up and as used up.
NEAR, OVER = 0.8, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """One budget as the page shows it."""

    status: BudgetStatus
    target: str
    #: Who set it: operator, owner, or a key.
    setter: str
    may_change: bool

    @property
    def share(self) -> float:
        """Spent and held as a share of the limit; 1 is all of it."""
        budget = self.status.budget
        taken = self.status.spent_pico + (self.status.held_pico or 0)
        return taken / budget.limit_pico if budget.limit_pico else OVER

    @property
    def tone(self) -> str:
        """The symbol of the state."""
        return "bad" if self.share >= OVER else "warn" if self.share >= NEAR else "ok"

    @property
    def label(self) -> str:
        """The state in words."""
        if self.share >= OVER:
            return gettext_noop("used up")
        return gettext_noop("nearly used up") if self.share >= NEAR else gettext_noop("within limit")

    @property
    def forecast_exceeds(self) -> bool:
        """Whether the forecast for the period is above the limit."""
        return (self.status.forecast_pico or 0) > self.status.budget.limit_pico


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """One limit as the page shows it. ``peak`` is None for a key's limit, because roll-ups have no keys."""

    limit: Limit
    target: str
    setter: str
    may_change: bool
    peak: Rate | None

    @property
    def requests_share(self) -> float | None:
        """Requests a minute of the busiest 15 minutes, as a share of the limit."""
        return _share(self.limit.requests_per_minute, self.peak.requests_per_minute if self.peak else None)

    @property
    def tokens_share(self) -> float | None:
        """Tokens a minute of the busiest 15 minutes, as a share of the limit."""
        return _share(self.limit.tokens_per_minute, self.peak.tokens_per_minute if self.peak else None)


@require_GET
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show budgets and limits, with forms for those who may set them."""
    return _show_limits(request, principal, tenant_for(principal, slug))


def _show_limits(
    request: HttpRequest,
    principal: Principal,
    tenant: Tenant,
    *,
    limit_form: LimitForm | None = None,
    budget_form: BudgetForm | None = None,
) -> HttpResponse:
    """Show the page, with a form that was refused as it was filled in."""
    may_set = limit_permissions.may_set_any(principal, tenant)
    since = timezone.now() - PEAK_WINDOW
    targets = _targets(principal, tenant)
    with as_tenant(TenantId(tenant.id)):
        statuses = limit_permissions.read_budget_statuses(
            list(limit_permissions.budgets_of(principal, tenant).order_by("-id")[: most(request, "budgets", MAX_ROWS)])
        )
        limits = limit_permissions.limits_of(principal, tenant).order_by("-id")
        listed = list(limits[: most(request, "limits", MAX_ROWS)])
        quarters = peak_usage.quarters(tenant.id, since) if listed else []
    rows = [_budget_row(each, principal, may_set) for each in statuses]
    found = [_limit_row(each, quarters, principal, may_set) for each in listed]
    context = {
        "budgets": rows,
        "limits": found,
        "nearest": _nearest(rows),
        "may_set": may_set,
        "limit_form": limit_form or LimitForm(targets=targets),
        "budget_form": budget_form or BudgetForm(targets=targets),
    }
    status = 400 if limit_form or budget_form else 200
    return show(request, principal, "portal/limits.html", context, active="limits", tenant=tenant, status=status)


def _targets(principal: Principal, tenant: Tenant) -> Targets:
    """Return what this principal can choose in the forms."""
    with as_tenant(TenantId(tenant.id)):
        live = ApiKey.objects.filter(tenant=tenant, purpose=ApiKey.Purpose.API, revoked_at=None, rotated_to=None)
        return Targets(
            projects=list(Project.objects.filter(tenant=tenant, archived_at=None).order_by("slug")),
            keys=list(live.order_by("name")[:MAX_ROWS]),
            models=limit_permissions.models_of(tenant),
            whole_tenant=principal.is_operator,
            currency=tenant.currency,
        )


@form_action("portal:limits")
@page
def set_limit(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Set a limit, replacing the target's current one."""
    tenant = tenant_for(principal, slug)
    form = LimitForm(request.POST, targets=_targets(principal, tenant))

    def change() -> str:
        target = limit_permissions.target_for(principal, tenant, form.target())
        limits.set_limit(principal.actor, target, form.values())
        return gettext_noop("Saved. Every gateway applies it within a second.")

    done = submit(request, form, change, back="portal:limits", slug=slug)
    return done or _show_limits(request, principal, tenant, limit_form=form)


@form_action("portal:limits")
@page
def remove_limit(request: HttpRequest, principal: Principal, slug: str, limit: UUID) -> HttpResponseRedirect:
    """Remove a limit."""
    tenant = tenant_for(principal, slug)
    found = limit_permissions.rule_of(tenant, limit_permissions.limits_of(principal, tenant), "limit", limit)

    def change() -> str:
        limit_permissions.require_may_change(principal, found)
        limits.remove(principal.actor, found)
        return gettext_noop("The limit was removed. Every gateway applies it within a second.")

    return _apply(request, tenant, change)


@form_action("portal:limits")
@page
def set_budget(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Create a budget, or change the target's budget of this period."""
    tenant = tenant_for(principal, slug)
    form = BudgetForm(request.POST, targets=_targets(principal, tenant))

    def change() -> str:
        target = limit_permissions.target_for(principal, tenant, form.target())
        _, created = budgets.put(principal.actor, target, form.terms())
        done = gettext_noop("The budget was set. Spending since the start of its period counts.")
        return (
            done if created else gettext_noop("The budget was changed. Spending since the start of its period counts.")
        )

    done = submit(request, form, change, back="portal:limits", slug=slug)
    return done or _show_limits(request, principal, tenant, budget_form=form)


@form_action("portal:limits")
@page
def archive_budget(request: HttpRequest, principal: Principal, slug: str, budget: UUID) -> HttpResponseRedirect:
    """Archive a budget: it limits nothing from now on."""
    tenant = tenant_for(principal, slug)
    found = limit_permissions.rule_of(tenant, limit_permissions.budgets_of(principal, tenant), "budget", budget)

    def change() -> str:
        limit_permissions.require_may_change(principal, found)
        budgets.archive(principal.actor, found)
        return gettext_noop("The budget was removed. Its spending stays on record.")

    return _apply(request, tenant, change)


def _apply(request: HttpRequest, tenant: Tenant, change: Callable[[], str]) -> HttpResponseRedirect:
    """Make a change, show its result as a message, and redirect to the page."""
    try:
        messages.success(request, change())
    except NotAllowed as error:
        messages.error(
            request,
            gettext("Nothing was changed: the %(kind)s %(name)s is %(state)s.")
            % {"kind": error.kind, "name": error.name, "state": error.state},
        )
    except NotPermitted as error:
        messages.error(request, unchanged(error.reason))
    except SetByAbove as error:
        messages.error(request, unchanged(error_text.words(error)))
    return redirect("portal:limits", slug=tenant.slug)


def _budget_row(status: BudgetStatus, principal: Principal, may_set: bool) -> BudgetRow:
    budget = status.budget
    return BudgetRow(
        status=status,
        target=_target_name(budget),
        setter=_setter(budget),
        may_change=may_set and _may_change_rule(principal, budget),
    )


def _limit_row(limit: Limit, quarters: list[Quarter], principal: Principal, may_set: bool) -> LimitRow:
    peak = None
    if limit.key_id is None:
        peak = peak_usage.busiest(quarters, project_id=limit.project_id, model_name=limit.model_name)
    return LimitRow(
        limit=limit,
        target=_target_name(limit),
        setter=_setter(limit),
        may_change=may_set and _may_change_rule(principal, limit),
        peak=peak,
    )


def _may_change_rule(principal: Principal, rule: Limit | Budget) -> bool:
    own = principal.is_operator or rule.project_id is not None or rule.key_id is not None
    return own and bound_setter.may_change(principal.actor, rule)


def _setter(rule: Limit | Budget) -> str:
    return (
        gettext("key hk_%(key)s_…") % {"key": rule.set_by_key} if rule.set_by_key else rule.get_set_by_display().lower()
    )


def _target_name(rule: Limit | Budget) -> str:
    if rule.project is not None:
        return gettext("project %(slug)s") % {"slug": rule.project.slug}
    return (
        gettext("key %(name)s") % {"name": rule.key.name} if rule.key is not None else gettext_noop("the whole tenant")
    )


def _nearest(rows: list[BudgetRow]) -> BudgetRow | None:
    """Return the budget with the largest share used; only the whole tenant's budgets count if there are any."""
    whole = [row for row in rows if row.status.budget.project_id is None and row.status.budget.key_id is None]
    return max(whole or rows, key=lambda row: row.share, default=None)


def _share(limit: int | None, rate: int | None) -> float | None:
    if limit is None or rate is None:
        return None
    return rate / limit if limit else float(rate > 0)
