"""Reserved capacity: what tenants have reserved, a form to reserve more, and the end of a reservation."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase, QueryDict
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from portal.access.principal import Principal, tenant_for
from portal.errors import BadQuery
from portal.pages.base import operator_page, show
from reserved_capacity import listing, reading, registry
from reserved_capacity.errors import ReservationRefused
from reserved_capacity.registry import Wanted
from tenants import error_text
from tenants.errors import NotFound, TenantError
from tenants.models import Tenant
from workers import tasks
from workers.errors import WorkerError
from workers.fleet import error_text as fleet_errors
from workers.fleet import reserved_capacity
from workers.models import Deployment


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """List the reservations; with POST, make or end one."""
    problem = ""
    if request.method == "POST":
        try:
            return _change(request, principal)
        except (ReservationRefused, BadQuery) as error:
            problem = str(error)
        except TenantError as error:
            problem = error_text.words(error)
        except WorkerError as error:
            problem = f"{fleet_errors.words(error)}."
    context = {
        "rows": listing.read(),
        "deployments": Deployment.objects.filter(archived_at=None).order_by("name").values_list("name", flat=True),
        "typed": request.POST,
        "problem": problem,
    }
    return show(
        request, principal, "portal/reservations.html", context, active="prices", status=400 if problem else 200
    )


def _change(request: HttpRequest, principal: Principal) -> HttpResponse:
    form = request.POST
    if form.get("action") == "end":
        ended = registry.end(principal.actor, _id(form.get("reservation", "")))
        messages.success(request, f"The reservation of {ended.deployment} ends at {ended.ends_at:%Y-%m-%d %H:%M} UTC.")
    else:
        slug = form.get("tenant", "").strip()
        if not slug:
            raise BadQuery("tenant", slug, "the slug of a tenant")
        tenant = tenant_for(principal, slug)
        made = reserved_capacity.reserve(principal.actor, tenant, _wanted(form, tenant))
        tasks.hint(())
        messages.success(request, f"{made.slots} slots of {made.deployment} are reserved for {slug}.")
    return redirect("portal:reservations")


def _wanted(form: QueryDict, tenant: Tenant) -> Wanted:
    zone = tenant.billing_timezone
    ends = form.get("until", "").strip()
    return Wanted(
        deployment=form.get("deployment", "").strip(),
        slots=_number("slots", form.get("slots", "")),
        starts_at=reading.moment("from", form.get("from", "").strip(), zone),
        ends_at=reading.moment("until", ends, zone) if ends else None,
        slot_hour_pico=reading.price(form.get("slot_hour", "")),
        tokens_per_slot_hour=_number("tokens_per_slot_hour", form.get("tokens_per_slot_hour", "") or "0"),
    )


def _number(field: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(registry.MOST_TOKENS_PER_SLOT_HOUR))):
        raise BadQuery(field, text, "a whole number")
    return int(text)


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound("reservation", text[:40]) from None
