"""What runs where, how warm, and how many should."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.views.decorators.http import require_GET, require_POST

from portal import fleet
from portal.access import Viewer
from portal.fragments import fleet_fragments
from portal.pages.shell import operator_page, show
from portal.queries import posted
from workers import deployments
from workers.errors import BadCount, NotFound


@require_GET
@operator_page
def index(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Show the fleet; the page then keeps itself up to date over ``/ws/fleet``."""
    return show(request, viewer, "portal/fleet.html", {"fleet": fleet.read()}, active="fleet")


@require_GET
@operator_page
def live(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Answer all live parts, for a page whose WebSocket is not to be had."""
    return HttpResponse("\n".join(fleet_fragments(fleet.read()).values()))


@require_POST
@operator_page
def scale(request: HttpRequest, viewer: Viewer) -> HttpResponseRedirect:
    """Set how many replicas a deployment shall have."""
    name, text = posted(request, "deployment"), posted(request, "replicas")
    try:
        replicas = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else -1
        deployments.scale(viewer.actor, name, replicas)
        messages.success(request, f"{name} shall have {replicas} replica{'' if replicas == 1 else 's'}.")
    except BadCount as error:
        messages.error(request, f"{text!r} replicas are not possible: use {error.allowed}.")
    except NotFound:
        messages.error(request, f"There is no deployment {name!r}.")
    return redirect("portal:fleet")
