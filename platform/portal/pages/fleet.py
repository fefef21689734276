"""What runs where, how warm, what comes next; and changing it."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from portal.access.principal import Principal
from portal.errors import BadQuery
from portal.fleet import actions
from portal.fleet.actions import Question
from portal.fleet.fragments import fleet_fragments
from portal.formats.query_params import posted
from portal.pages.base import operator_page, show
from tenants import errors as tenants
from workers.errors import NotFound, Refused, WorkerError
from workers.fleet import error_text, inventory


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the fleet; the page then keeps itself up to date over ``/ws/fleet``."""
    return show(request, principal, "portal/fleet.html", {"fleet": inventory.read()}, active="fleet")


@require_GET
@operator_page
def live(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Answer all live parts, for a page whose WebSocket is not to be had."""
    return HttpResponse("\n".join(fleet_fragments(inventory.read()).values()))


@require_http_methods(["GET", "POST"])
@operator_page
def verb(request: HttpRequest, principal: Principal, name: str, target: str) -> HttpResponse:
    """Ask before a verb is done, as a page or as the content of a dialog; done, it leads back to the fleet."""
    try:
        question = actions.ask(name, target)
        if request.method == "GET":
            return _asked(request, principal, question)
        values = {field: posted(request, field) for field in request.POST}
        effect = actions.perform(principal.actor, name, target, values)
    except NotFound as error:
        raise tenants.NotFound(error.kind, error.name) from error
    except BadQuery as error:
        return _asked(
            request, principal, question, f"{error.param} {error.value!r} is not possible: use {error.allowed}."
        )
    except WorkerError as error:
        status = 409 if isinstance(error, Refused) else 400
        return _asked(request, principal, question, f"Nothing was changed: {error_text.words(error)}.", status)
    said = f"{effect.target} {effect.now}." if effect.changed else f"{effect.target} {effect.now}, as before."
    messages.success(request, said[:1].upper() + said[1:])
    return redirect("portal:fleet")


def _asked(
    request: HttpRequest, principal: Principal, question: Question, problem: str = "", status: int = 400
) -> HttpResponse:
    context = {"question": question, "problem": problem}
    if request.headers.get("HX-Request"):
        return render(request, "portal/parts/question.html", context)
    answered = status if problem else 200
    return show(request, principal, "portal/verb.html", context, active="fleet", status=answered)
