"""A tenant's API keys: list, create (the secret is shown once), change, rotate and revoke."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from portal.access import one_time_secrets
from portal.access.principal import Principal, tenant_for
from portal.formats.query_params import posted, text
from portal.pages.base import form_action, page, show
from tenants import keys
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.ids import TenantId
from tenants.models import ApiKey, Project, Tenant
from tenants.rls import as_tenant

#: The sets of scopes that the form offers.
SCOPE_CHOICES = {
    "inference": keys.DEFAULT_SCOPES,
    "inference-only": ("inference", "cache:read", "cache:write"),
    "store-nothing": ("inference", "cache:read", "management:read"),
    "no-cache": ("inference", "management:read"),
    "manage": keys.SCOPES,
}
#: Seconds until the old key of a rotation expires, as the form offers them.
OVERLAPS = {"0": "at once", "3600": "in an hour", "86400": "in a day", "604800": "in 7 days", "2592000": "in 30 days"}
#: Days until a key expires, as the form offers them.
LIFETIMES = {"never": "never", "7": "in 7 days", "30": "in 30 days", "90": "in 90 days", "365": "in a year"}
#: Form value of a field that stays as it is.
KEEP = "keep"
MAX_NAME_LENGTH = 200
MAX_MODELS = 200
MAX_ROWS = 500

T = TypeVar("T")


@require_GET
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """List the keys, with a form to create one for those who may. ``?new=`` names the key whose secret is shown."""
    tenant = tenant_for(principal, slug)
    new = _new_key(tenant, text(request.GET, "new"))
    if new is None:
        return _show_keys(request, principal, tenant)
    secret = one_time_secrets.take(request, new.public_id)
    response = _show_keys(request, principal, tenant, new=new, secret=secret)
    one_time_secrets.delete_cookie(response, new.public_id)
    return response


@form_action("portal:keys")
@page
def create(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Create a key and redirect to the list, which shows the key's secret once."""
    tenant = _manageable_tenant(principal, slug)
    name = posted(request, "name")
    scopes = SCOPE_CHOICES.get(request.POST.get("scopes", "inference"))
    project = Project.objects.filter(tenant=tenant, slug=posted(request, "project") or "default").first()
    if not name or len(name) > MAX_NAME_LENGTH or scopes is None or project is None:
        problem = f"Enter a name of at most {MAX_NAME_LENGTH} characters and choose a project of this tenant."
        return _show_keys(request, principal, tenant, problem=problem, status=400)
    try:
        issued = keys.issue(principal.actor, project, name=name, scopes=scopes)
    except NotAllowed as error:
        problem = f"The project {error.name} is {error.state}."
        return _show_keys(request, principal, tenant, problem=problem, status=409)
    return _redirect_with_secret(request, tenant, issued)


@require_http_methods(["GET", "POST"])
@page
def change(request: HttpRequest, principal: Principal, slug: str, key: UUID) -> HttpResponse:
    """Show the form that changes a key, and change it. An invalid form is shown again as it was filled in."""
    tenant = _manageable_tenant(principal, slug)
    form = _KeyForm(tenant=tenant, action="change", key=_key_of(tenant, key))
    values = _form_values(form.key)
    if request.method == "GET":
        return form.show(request, principal, values)
    try:
        keys.change(principal.actor, form.key, **_changes(request))
    except (BadName, NotAllowed) as error:
        return form.show(request, principal, values | request.POST.dict(), _problem(error))
    messages.success(request, f"{form.key.name} was changed. Every gateway applies it within a second.")
    return redirect("portal:keys", slug=tenant.slug)


@require_http_methods(["GET", "POST"])
@page
def rotate(request: HttpRequest, principal: Principal, slug: str, key: UUID) -> HttpResponse:
    """Show the form that rotates a key, and rotate it; the list of keys then shows the new secret once."""
    tenant = _manageable_tenant(principal, slug)
    form = _KeyForm(tenant=tenant, action="rotate", key=_key_of(tenant, key))
    if request.method == "GET":
        if ApiKey.objects.filter(rotated_from=form.key).exists():
            messages.info(request, f"{form.key.name} was rotated already. Rotate the key that replaced it.")
            return redirect("portal:keys", slug=tenant.slug)
        return form.show(request, principal, {"overlap": "86400"})
    try:
        issued = keys.rotate(principal.actor, form.key, _overlap(request))
    except (BadName, NotAllowed) as error:
        return form.show(request, principal, request.POST.dict(), _problem(error))
    return _redirect_with_secret(request, tenant, issued)


@form_action("portal:keys")
@page
def revoke(request: HttpRequest, principal: Principal, slug: str, key: UUID) -> HttpResponseRedirect:
    """Revoke a key of this tenant; another tenant's key is not found."""
    tenant = _manageable_tenant(principal, slug)
    found = _key_of(tenant, key)
    keys.revoke(principal.actor, found)
    messages.success(request, f"{found.name} was revoked. Every gateway refuses it within a second.")
    return redirect("portal:keys", slug=tenant.slug)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyForm:
    """The form that changes or rotates one key: a dialog for ``dialogs.js``, else a page of its own."""

    tenant: Tenant
    action: Literal["change", "rotate"]
    key: ApiKey

    def show(
        self, request: HttpRequest, principal: Principal, values: Mapping[str, Any], problem: str = ""
    ) -> HttpResponse:
        """Render the form with these values; ``problem`` says why the last attempt was refused."""
        part = f"portal/parts/key_{self.action}.html"
        context = {"key": self.key, "values": values, "problem": problem, "part": part, "tenant": self.tenant}
        context |= {"overlaps": OVERLAPS, "lifetimes": LIFETIMES, "max_name_length": MAX_NAME_LENGTH}
        if request.headers.get("HX-Request"):
            return render(request, part, context)
        status = 400 if problem else 200
        return show(
            request, principal, "portal/key_form.html", context, active="keys", tenant=self.tenant, status=status
        )


def _manageable_tenant(principal: Principal, slug: str) -> Tenant:
    """Return a tenant whose keys this principal may change. Raises NotFound, then PermissionDenied."""
    tenant = tenant_for(principal, slug)
    if not principal.may_manage(tenant.id):
        raise PermissionDenied
    return tenant


def _key_of(tenant: Tenant, key: UUID) -> ApiKey:
    found = ApiKey.objects.filter(tenant=tenant, id=key).select_related("project").first()
    if found is None:
        raise NotFound("key", str(key))
    return found


def _redirect_with_secret(request: HttpRequest, tenant: Tenant, issued: keys.IssuedKey) -> HttpResponseRedirect:
    """Redirect to the list of keys, so that reloading it repeats nothing; it shows the secret once."""
    new = issued.key.public_id
    response = HttpResponseRedirect(f"{reverse('portal:keys', args=[tenant.slug])}?{urlencode({'new': new})}")
    one_time_secrets.store(request, response, new, issued.secret)
    return response


def _new_key(tenant: Tenant, public_id: str | None) -> ApiKey | None:
    if public_id is None:
        return None
    return ApiKey.objects.filter(tenant=tenant, public_id=public_id).select_related("rotated_from").first()


def _show_keys(
    request: HttpRequest,
    principal: Principal,
    tenant: Tenant,
    *,
    new: ApiKey | None = None,
    secret: str | None = None,
    problem: str = "",
    status: int = 200,
) -> HttpResponse:
    """Show the list of keys, with the key that was just issued or the problem that prevented it.

    ``secret`` is the secret of ``new``, or None when it was shown before.
    """
    with as_tenant(TenantId(tenant.id)):
        rows = ApiKey.objects.filter(tenant=tenant).select_related("project", "rotated_from", "rotated_to")
        listed = list(rows.order_by("-id")[:MAX_ROWS])
        projects = list(Project.objects.filter(tenant=tenant, archived_at=None).order_by("slug"))
    now = timezone.now()
    ended = [key for key in listed if key.revoked_at or (key.expires_at and key.expires_at <= now)]
    context = {
        "live": [key for key in listed if key not in ended],
        "ended": ended,
        "projects": projects,
        "new": new,
        "secret": secret,
        "problem": problem,
        "may_manage": principal.may_manage(tenant.id),
    }
    return show(request, principal, "portal/keys.html", context, active="keys", tenant=tenant, status=status)


def _form_values(key: ApiKey) -> dict[str, str]:
    """Return the form's values for a key as it is now."""
    scopes = next((name for name, choice in SCOPE_CHOICES.items() if set(choice) == set(key.scopes)), KEEP)
    return {
        "name": key.name,
        "scopes": scopes,
        "models": "\n".join(key.allowed_models),
        "networks": "\n".join(key.allowed_networks),
        "expires": KEEP,
    }


def _changes(request: HttpRequest) -> dict[str, Any]:
    """Return the fields that the form changes. Raises BadName."""
    name, scopes, expires = posted(request, "name"), posted(request, "scopes"), posted(request, "expires")
    models = _lines(posted(request, "models"))
    if not name or len(name) > MAX_NAME_LENGTH:
        raise BadName("name", name, f"1 to {MAX_NAME_LENGTH} characters")
    if len(models) > MAX_MODELS or any(len(model) > MAX_NAME_LENGTH for model in models):
        raise BadName("models", f"{len(models)} models", f"at most {MAX_MODELS}, each of {MAX_NAME_LENGTH} characters")
    changes: dict[str, Any] = {
        "name": name,
        "allowed_models": models,
        "allowed_networks": _lines(posted(request, "networks")),
    }
    if scopes != KEEP:
        changes["scopes"] = list(_one_of(SCOPE_CHOICES, scopes, "scopes"))
    if expires != KEEP:
        _one_of(LIFETIMES, expires, "expiry")
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


def _lines(entries: str) -> list[str]:
    """Return the distinct entries of a text field, separated by line breaks or commas."""
    return list(dict.fromkeys(each.strip() for each in entries.replace(",", "\n").splitlines() if each.strip()))


def _problem(error: BadName | NotAllowed) -> str:
    if isinstance(error, NotAllowed):
        return f"Nothing was changed: the {error.kind} is {error.state}."
    return f"Nothing was changed: {error.name!r} is not valid; use {error.allowed}."
