"""Plans: their terms in an editor with a preview, and which tenants have them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from billing.errors import PlanRefused
from billing.models import Plan
from billing.months import previews
from billing.months.previews import Preview
from billing.plans import registry, wording
from billing.plans import terms as documents
from portal import plan_terms
from portal.access.principal import Principal, tenant_for
from portal.errors import BadQuery
from portal.fleet.document.reading import BadDocument
from portal.pages.base import operator_page, show
from portal.reporting import periods
from tenants import error_text
from tenants.errors import NotFound, TenantError

#: Tenants that a preview shows; the command and the API show all.
MAX_PREVIEWED = 200
EXAMPLE = """\
allowances: []          # - {tokens: 10000000, models: [tiny-chat]}
tiers: []               # - steps: [{above_tokens: 100000000, percent: 10}]
discounts: []           # - {percent: "12.5"}
minimum: "0"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDisplay:
    """A plan, and its versions with their terms in plain words."""

    listed: registry.Listed
    versions: tuple[tuple[date, tuple[str, ...]], ...]


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """List the plans; with POST, preview or set the terms that were typed, or assign a plan."""
    previewed, problem = None, ""
    if request.method == "POST":
        try:
            if request.POST.get("action") != "preview":
                return _change(request, principal)
            previewed = _preview(request)
        except (BadDocument, PlanRefused, BadQuery) as error:
            problem = str(error)
        except TenantError as error:
            problem = error_text.words(error)
    return _page(request, principal, previewed, problem)


def _page(request: HttpRequest, principal: Principal, previewed: list[Preview] | None, problem: str) -> HttpResponse:
    typed = request.method == "POST"
    name = request.POST.get("name", "") if typed else request.GET.get("plan", "")
    context = {
        "rows": [_display(each) for each in registry.listed()],
        "text": request.POST.get("document", "") if typed else _text(name),
        "name": name,
        "from_month": request.POST.get("from_month", "") if typed else f"{timezone.now():%Y-%m}",
        "tenant_slug": request.POST.get("tenant", ""),
        "previewed": previewed,
        "left_out": max(0, len(previews.billed_tenants(timezone.now())) - MAX_PREVIEWED) if previewed else 0,
        "problem": problem,
    }
    return show(request, principal, "portal/plans.html", context, active="prices", status=400 if problem else 200)


def _change(request: HttpRequest, principal: Principal) -> HttpResponse:
    form = request.POST
    name, slug, month = form.get("name", "").strip(), form.get("tenant", "").strip(), _month(request)
    if form.get("action") == "assign":
        if not slug:
            raise BadQuery("tenant", slug, "the slug of a tenant")
        registry.assign(principal.actor, tenant_for(principal, slug), name or None, month)
        messages.success(request, f"{slug} has {f'the plan {name}' if name else 'no plan'} from {month:%Y-%m} on.")
    else:
        tenant = tenant_for(principal, slug) if slug else None
        registry.set_terms(principal.actor, name, plan_terms.read(form.get("document", "")), month, tenant=tenant)
        messages.success(request, f"{name} has these terms from {month:%Y-%m} on. Assign it to tenants.")
    return redirect("portal:plans")


def _preview(request: HttpRequest) -> list[Preview]:
    now = timezone.now()
    currency = Plan.objects.filter(name=request.POST.get("name", "")).values_list("currency", flat=True).first()
    terms = plan_terms.read(request.POST.get("document", ""))
    tenants = previews.billed_tenants(now)[:MAX_PREVIEWED]
    return list(previews.of_terms(terms, currency or "USD", tenants, now))


def _month(request: HttpRequest) -> date:
    text = request.POST.get("from_month", "")
    if not text:
        raise BadQuery("from_month", text, "a month as YYYY-MM")
    return periods.parse_month(text, timezone.now())


def _text(name: str) -> str:
    """Return the latest terms of a plan as text, or an empty document with what it may contain."""
    try:
        return plan_terms.text(registry.latest(name).terms) if name else EXAMPLE
    except NotFound:
        return EXAMPLE


def _display(listed: registry.Listed) -> PlanDisplay:
    plan = listed.plan
    versions = tuple(
        (each.from_month, wording.sentences(documents.read(each.terms), plan.currency)) for each in listed.versions
    )
    return PlanDisplay(listed=listed, versions=versions)
