"""The search box of every page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_GET

from portal.access.principal import Principal
from portal.documentation import search as documentation
from portal.formats import query_params
from portal.pages.base import page, show
from portal.reporting.requests import request_search

#: Characters of a text that is searched; longer ones are cut.
LONGEST_TEXT = 200


@require_GET
@page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show what a text may mean, and where the documentation has it. A request's id leads to its page at once."""
    text = (query_params.text(request.GET, "q") or "").strip()[:LONGEST_TEXT]
    found = request_search.find(principal, text) if text else []
    if len(found) == 1 and found[0].kind == "Request":
        return redirect(found[0].link)
    context = {"q": text, "matches": found, "sections": documentation.find(text)}
    return show(request, principal, "portal/search.html", context, active="")
