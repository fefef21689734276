"""The fleet page: what runs where, and the dialogs that change it."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext
from django.views.decorators.http import require_GET, require_http_methods

from portal.access.principal import Principal
from portal.fleet import actions
from portal.fleet.actions import ActionDialog
from portal.fleet.fragments import fleet_fragments, within
from portal.formats import csv_export
from portal.formats.query_params import posted
from portal.pages.base import operator_page, show
from portal.reporting.placeholder_costs_csv import CSV_HEADER, csv_rows
from reserved_capacity import listing
from tenants import errors as tenants
from workers.errors import NotFound, Refused, WorkerError
from workers.fleet import error_text
from workers.fleet.operations import Effect
from workers.fleet.status import inventory
from workers.serving import placeholder_costs as costs

#: Days on the page of costs.
COST_DAYS = 14


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the fleet and what is reserved of it. The page is then updated over ``/ws/fleet``."""
    fleet = inventory.read()
    parts = within(fleet_fragments(fleet))
    context = {"fleet": fleet, "parts": parts, "reservations": listing.read(with_ended=False)}
    return show(request, principal, "portal/fleet.html", context, active="fleet")


@require_GET
@operator_page
def live(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Return all live parts, for a page that cannot open its WebSocket."""
    return HttpResponse("\n".join(fleet_fragments(inventory.read()).values()))


@require_GET
@operator_page
def placeholder_costs(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show what placeholders cost and saved in the last days."""
    context = {"costs": costs.newest(COST_DAYS), "days": COST_DAYS}
    return show(request, principal, "portal/placeholder_costs.html", context, active="fleet")


@require_GET
@operator_page
def placeholder_costs_csv(request: HttpRequest, principal: Principal) -> StreamingHttpResponse:
    """Download the same for as long as leases of slots are kept."""
    rows = csv_rows(costs.newest(costs.MOST_DAYS))
    return csv_export.attachment(request, "placeholder-costs", CSV_HEADER, rows)


@require_http_methods(["GET", "POST"])
@operator_page
def verb(request: HttpRequest, principal: Principal, name: str, target: str) -> HttpResponse:
    """Show the dialog of a verb, as a page or for a dialog element; run the verb and go back to the fleet."""
    try:
        found = actions.dialog(name, target)
        if request.method == "GET":
            return _show_dialog(request, principal, found.filled(request.GET.dict()))
        given = {field: posted(request, field) for field in request.POST}
        dialog = found.filled(given)
        effect = dialog.run(principal.actor, given)
    except NotFound as error:
        raise tenants.NotFound(error.kind, error.name) from error
    except WorkerError as error:
        status = 409 if isinstance(error, Refused) else 400
        problem = gettext("Nothing was changed: %(reason)s.") % {"reason": error_text.words(error)}
        return _show_dialog(request, principal, dialog.refusing(error), problem, status)
    messages.success(request, _said(effect, found))
    return redirect("portal:fleet")


def _said(effect: Effect, before: ActionDialog) -> str:
    """Return what a verb did, with a link to the dialog that undoes it: it has the values of before."""
    form = gettext("%(target)s %(now)s.") if effect.changed else gettext("%(target)s %(now)s, as before.")
    text = form % {"target": effect.target, "now": effect.now}
    text = text[:1].upper() + text[1:]
    if not (effect.changed and before.undo):
        return text
    address = f"{reverse('portal:fleet-verb', args=[before.verb.name, before.target])}?{before.undo}"
    return format_html(
        '{} <a class="link" href="{}" data-ask data-testid="undo">{}</a>', text, address, gettext("Undo it")
    )


def _show_dialog(
    request: HttpRequest, principal: Principal, dialog: ActionDialog, problem: str = "", status: int = 200
) -> HttpResponse:
    context = {"dialog": dialog, "problem": problem}
    if request.headers.get("HX-Request"):
        return render(request, "portal/parts/action_dialog.html", context)
    return show(request, principal, "portal/action.html", context, active="fleet", status=status)
