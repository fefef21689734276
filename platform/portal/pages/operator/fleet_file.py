"""The fleet as one file: what it is, what another file would change, and applying that."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from portal.access.principal import Principal
from portal.access.rights import operator_rights
from portal.fleet.document import apply, present
from portal.fleet.document.reading import BadDocument
from portal.pages.base import operator_page, show

_FLAGS = ("prune", "confirm_prices")


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show the file of the fleet as it is; with POST, plan or apply the one that was typed."""
    flags = {name: name in request.POST for name in _FLAGS}
    dry_run = request.POST.get("action") != "apply"
    text = request.POST.get("document", "")
    outcome, problem = None, ""
    if request.method == "POST":
        try:
            outcome = apply.apply_text(
                principal.actor,
                text,
                dry_run=dry_run,
                may_set_prices=operator_rights.may_set_prices(principal),
                **flags,
            )
        except BadDocument as error:
            problem = str(error)
    if outcome is not None and not dry_run:
        for note in outcome.notes:
            messages.info(request, note)
        count = len(outcome.changes)
        messages.success(
            request,
            gettext("Applied: %(count)s changed.") % {"count": count}
            if count
            else _("The fleet is as the file says already."),
        )
        return redirect("portal:fleet-file")
    context = {
        "text": text if request.method == "POST" else present.text(present.read()),
        "outcome": outcome,
        "problem": problem,
        **flags,
    }
    return show(request, principal, "portal/fleet_file.html", context, active="fleet", status=400 if problem else 200)
