"""One key of a tenant: what it may do is changed, and it is rotated, each asked in a dialog or on a page of its own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from portal.access.viewer import Viewer
from portal.formats.query_params import posted
from portal.pages.base import page, show
from portal.pages.keys import CHOICES, LONGEST_NAME, managed, show_keys
from tenants import keys
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.models import ApiKey, Tenant

#: Seconds that both keys work, as the form offers it.
OVERLAPS = {"0": "at once", "3600": "in an hour", "86400": "in a day", "604800": "in 7 days", "2592000": "in 30 days"}
#: Days until a key expires.
LIFETIMES = {"never": "never", "7": "in 7 days", "30": "in 30 days", "90": "in 90 days", "365": "in a year"}
KEEP = "keep"
MOST_MODELS = 200

T = TypeVar("T")


@require_http_methods(["GET", "POST"])
@page
def change(request: HttpRequest, viewer: Viewer, slug: str, key: UUID) -> HttpResponse:
    """Ask what the key may do, and change it; a form that is not understood comes back as it was filled in."""
    tenant = managed(viewer, slug)
    found = _key_of(tenant, key)
    if request.method == "GET":
        return _asked(request, viewer, tenant, "change", found, _shown(found))
    try:
        keys.change(viewer.actor, found, **_changes(request))
    except (BadName, NotAllowed) as error:
        filled = _shown(found) | request.POST.dict()
        return _asked(request, viewer, tenant, "change", found, filled, _told(error))
    messages.success(request, f"{found.name} is changed: every gateway knows within a second.")
    return redirect("portal:keys", slug=tenant.slug)


@require_http_methods(["GET", "POST"])
@page
def rotate(request: HttpRequest, viewer: Viewer, slug: str, key: UUID) -> HttpResponse:
    """Ask for how long both keys shall work, and show the new one's secret in this one answer."""
    tenant = managed(viewer, slug)
    found = _key_of(tenant, key)
    if request.method == "GET":
        return _asked(request, viewer, tenant, "rotate", found, {"overlap": "86400"})
    try:
        issued = keys.rotate(viewer.actor, found, _overlap(request), created_by=viewer.user)
    except (BadName, NotAllowed) as error:
        return _asked(request, viewer, tenant, "rotate", found, request.POST.dict(), _told(error))
    return show_keys(request, viewer, tenant, issued=issued, status=201)


def _key_of(tenant: Tenant, key: UUID) -> ApiKey:
    found = ApiKey.objects.filter(tenant=tenant, id=key).select_related("project").first()
    if found is None:
        raise NotFound("key", str(key))
    return found


def _asked(
    request: HttpRequest,
    viewer: Viewer,
    tenant: Tenant,
    verb: str,
    key: ApiKey,
    filled: Mapping[str, Any],
    problem: str = "",
) -> HttpResponse:
    part = f"portal/parts/key_{verb}.html"
    context = {"key": key, "filled": filled, "problem": problem, "part": part, "tenant": tenant}
    context |= {"overlaps": OVERLAPS, "lifetimes": LIFETIMES, "longest_name": LONGEST_NAME}
    if request.headers.get("HX-Request"):
        return render(request, part, context)
    status = 400 if problem else 200
    return show(request, viewer, "portal/key.html", context, active="keys", tenant=tenant, status=status)


def _shown(key: ApiKey) -> dict[str, str]:
    """Return the key as the form has it."""
    scopes = next((name for name, choice in CHOICES.items() if set(choice) == set(key.scopes)), KEEP)
    return {
        "name": key.name,
        "scopes": scopes,
        "models": "\n".join(key.allowed_models),
        "networks": "\n".join(key.allowed_networks),
        "expires": KEEP,
    }


def _changes(request: HttpRequest) -> dict[str, Any]:
    """Return what the form changes. Raises BadName."""
    name, scopes, expires = posted(request, "name"), posted(request, "scopes"), posted(request, "expires")
    models = _lines(posted(request, "models"))
    if not name or len(name) > LONGEST_NAME:
        raise BadName("name", name, f"1 to {LONGEST_NAME} characters")
    if len(models) > MOST_MODELS or any(len(model) > LONGEST_NAME for model in models):
        raise BadName("models", f"{len(models)} models", f"at most {MOST_MODELS}, each of {LONGEST_NAME} characters")
    changes: dict[str, Any] = {
        "name": name,
        "allowed_models": models,
        "allowed_networks": _lines(posted(request, "networks")),
    }
    if scopes != KEEP:
        changes["scopes"] = list(_one_of(CHOICES, scopes, "what it may do"))
    if expires != KEEP:
        _one_of(LIFETIMES, expires, "when it expires")
        changes["expires_at"] = None if expires == "never" else timezone.now() + timedelta(days=int(expires))
    return changes


def _overlap(request: HttpRequest) -> timedelta:
    chosen = posted(request, "overlap")
    _one_of(OVERLAPS, chosen, "overlap")
    return timedelta(seconds=int(chosen))


def _one_of(choices: Mapping[str, T], chosen: str, what: str) -> T:
    if chosen not in choices:
        raise BadName(what, chosen[:64], ", ".join(choices))
    return choices[chosen]


def _lines(text: str) -> list[str]:
    """Return what a form's field lists, one a line or separated by commas, each once."""
    return list(dict.fromkeys(each.strip() for each in text.replace(",", "\n").splitlines() if each.strip()))


def _told(error: BadName | NotAllowed) -> str:
    if isinstance(error, NotAllowed):
        return f"Nothing was changed: the {error.kind} is {error.state}."
    return f"Nothing was changed: {error.name!r} is not understood; use {error.allowed}."
