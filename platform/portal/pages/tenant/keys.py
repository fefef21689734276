"""A tenant's API keys: list, create (the secret is shown once), change, rotate and revoke."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_GET, require_http_methods

from portal.access import project_scope
from portal.access.principal import Principal, tenant_for
from portal.access.requests import form_tokens, one_time_secrets
from portal.access.rights import key_grants
from portal.errors import NotPermitted
from portal.formats.query_params import posted, text
from portal.formats.table_csv import most
from portal.forms.base import PageForm
from portal.forms.keys import ChangeKeyForm, NewKeyForm, RotateKeyForm
from portal.pages.base import form_action, page, show, unchanged
from tenants.database.rls import as_tenant
from tenants.errors import BadName, NotAllowed
from tenants.identity import key_makers
from tenants.ids import TenantId
from tenants.keys import keys
from tenants.models import ApiKey, Project, Tenant

MAX_ROWS = 500


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
    form = NewKeyForm(
        request.POST, projects=_open_projects(principal, tenant), whole_tenant=principal.sees_whole(tenant.id)
    )
    if form.is_valid():
        if not form_tokens.use(posted(request, "form_token")):
            messages.info(
                request, _("This form was sent twice: the key was created once. Rotate it for another secret.")
            )
            return redirect("portal:keys", slug=tenant.slug)
        wanted = form.cleaned_data
        try:
            key_grants.require_own_project(principal, wanted["project"])
            key_grants.require_grantable(principal, tenant, {"scopes": wanted["scopes"]})
            terms = {name: wanted[name] for name in ("name", "scopes")}
            issued = keys.issue(principal.actor, wanted["project"], **terms, expires_at=wanted["expires"])
            return _redirect_with_secret(request, tenant, issued)
        except NotPermitted as error:
            form.add_error("scopes", error.reason)
        except NotAllowed as error:
            form.refuse(error)
    return _show_keys(request, principal, tenant, form=form)


@require_http_methods(["GET", "POST"])
@page
def change(request: HttpRequest, principal: Principal, slug: str, key: UUID) -> HttpResponse:
    """Show the form that changes a key, and change it. An invalid form is shown again as it was filled in."""
    tenant = _manageable_tenant(principal, slug)
    dialog = _KeyDialog(tenant=tenant, action="change", key=project_scope.key_of(principal, tenant, key))
    whole = principal.sees_whole(tenant.id)
    if request.method == "GET":
        return dialog.show(request, principal, ChangeKeyForm(key=dialog.key, whole_tenant=whole))
    form = ChangeKeyForm(request.POST, key=dialog.key, whole_tenant=whole)
    if form.is_valid():
        try:
            changes = form.changes()
            key_grants.require_grantable(principal, tenant, changes, key=dialog.key)
            keys.change(principal.actor, dialog.key, **changes)
            messages.success(
                request,
                gettext("%(name)s was changed. Every gateway applies it within a second.") % {"name": dialog.key.name},
            )
            return redirect("portal:keys", slug=tenant.slug)
        except NotPermitted as error:
            form.add_error("scopes", error.reason)
        except (BadName, NotAllowed) as error:
            form.refuse(error)
    return dialog.show(request, principal, form)


@require_http_methods(["GET", "POST"])
@page
def rotate(request: HttpRequest, principal: Principal, slug: str, key: UUID) -> HttpResponse:
    """Show the form that rotates a key, and rotate it; the list of keys then shows the new secret once."""
    tenant = _manageable_tenant(principal, slug)
    dialog = _KeyDialog(tenant=tenant, action="rotate", key=project_scope.key_of(principal, tenant, key))
    if request.method == "GET":
        with as_tenant(TenantId(tenant.id)):
            is_rotated = ApiKey.objects.filter(rotated_from=dialog.key).exists()
        if is_rotated:
            messages.info(
                request,
                gettext("%(name)s was rotated already. Rotate the key that replaced it.") % {"name": dialog.key.name},
            )
            return redirect("portal:keys", slug=tenant.slug)
        return dialog.show(request, principal, RotateKeyForm())
    form = RotateKeyForm(request.POST)
    if form.is_valid():
        try:
            key_grants.require_grantable(principal, tenant, {}, key=dialog.key)
            return _redirect_with_secret(request, tenant, keys.rotate(principal.actor, dialog.key, form.period()))
        except NotPermitted as error:
            form.add_error(None, error.reason)
        except (BadName, NotAllowed) as error:
            form.refuse(error)
    return dialog.show(request, principal, form)


@form_action("portal:keys")
@page
def revoke(request: HttpRequest, principal: Principal, slug: str, key: UUID) -> HttpResponseRedirect:
    """Revoke a key of this tenant; another tenant's key is not found."""
    tenant = _manageable_tenant(principal, slug)
    found = project_scope.key_of(principal, tenant, key)
    try:
        key_grants.require_own_project(principal, found.project)
    except NotPermitted as error:
        messages.error(request, unchanged(error.reason))
        return redirect("portal:keys", slug=tenant.slug)
    keys.revoke(principal.actor, found)
    messages.success(
        request, gettext("%(name)s was revoked. Every gateway refuses it within a second.") % {"name": found.name}
    )
    return redirect("portal:keys", slug=tenant.slug)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyDialog:
    """What changes or rotates one key: a dialog for ``dialogs.js``, else a page of its own."""

    tenant: Tenant
    action: Literal["change", "rotate"]
    key: ApiKey

    def show(self, request: HttpRequest, principal: Principal, form: PageForm) -> HttpResponse:
        """Render the form, with the errors of the last attempt if there are any."""
        part = f"portal/parts/key_{self.action}.html"
        context = {"key": self.key, "form": form, "part": part, "tenant": self.tenant}
        if request.headers.get("HX-Request"):
            return render(request, part, context)
        status = 400 if form.errors else 200
        return show(
            request, principal, "portal/key_form.html", context, active="keys", tenant=self.tenant, status=status
        )


def _manageable_tenant(principal: Principal, slug: str) -> Tenant:
    """Return a tenant whose keys this principal may change. Raises NotFound, then PermissionDenied."""
    tenant = tenant_for(principal, slug)
    if not principal.may_manage(tenant.id):
        raise PermissionDenied
    return tenant


def _redirect_with_secret(request: HttpRequest, tenant: Tenant, issued: keys.IssuedKey) -> HttpResponseRedirect:
    """Redirect to the list of keys, so that reloading it repeats nothing; it shows the secret once."""
    page = reverse("portal:keys", args=[tenant.slug])
    return one_time_secrets.show_once(request, page, issued.key.public_id, issued.secret)


def _new_key(tenant: Tenant, public_id: str | None) -> ApiKey | None:
    if public_id is None:
        return None
    with as_tenant(TenantId(tenant.id)):
        return ApiKey.objects.filter(tenant=tenant, public_id=public_id).select_related("rotated_from").first()


def _show_keys(
    request: HttpRequest,
    principal: Principal,
    tenant: Tenant,
    *,
    new: ApiKey | None = None,
    secret: str | None = None,
    form: NewKeyForm | None = None,
) -> HttpResponse:
    """Show the list of keys, with the key that was just issued or the form that was refused.

    ``secret`` is the secret of ``new``, or None when it was shown before.
    """
    with as_tenant(TenantId(tenant.id)):
        rows = ApiKey.objects.filter(tenant=tenant).select_related("project", "rotated_from", "rotated_to")
        of_api = rows.filter(purpose=ApiKey.Purpose.API).order_by("-id")
        has_ended = ~Q(revoked_at=None) | Q(expires_at__lte=Now())
        live = list(of_api.exclude(has_ended)[: most(request, "keys", MAX_ROWS)])
        ended = list(of_api.filter(has_ended)[: most(request, "ended-keys", MAX_ROWS)])
        of_playground = rows.filter(purpose=ApiKey.Purpose.PLAYGROUND, revoked_at=None, expires_at__gt=Now())
        playing = list(of_playground.order_by("name")[: most(request, "playground-keys", MAX_ROWS)])
        here = key_makers.present(tenant, live)
    notes = key_makers.notes(live, here) if principal.is_owner_of(tenant.id) else {}
    context = {
        "live": [(key, notes.get(key.created_by_id or 0, "")) for key in live],
        "ended": ended,
        "playing": playing,
        "new": new,
        "secret": secret,
        "form_token": form_tokens.new(),
        "form": form
        or NewKeyForm(projects=_open_projects(principal, tenant), whole_tenant=principal.sees_whole(tenant.id)),
        "may_manage": principal.may_manage(tenant.id),
    }
    status = 400 if form is not None else 200
    return show(request, principal, "portal/keys.html", context, active="keys", tenant=tenant, status=status)


def _open_projects(principal: Principal, tenant: Tenant) -> list[Project]:
    """Return the projects in which this principal may make keys."""
    with as_tenant(TenantId(tenant.id)):
        found = list(Project.objects.filter(tenant=tenant, archived_at=None).order_by("slug"))
    return [each for each in found if principal.may_change_keys_of(each)]
