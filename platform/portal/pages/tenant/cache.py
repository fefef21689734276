"""The prediction cache of a tenant: its policy, the settings of projects and keys, and purging it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_GET

from catalogue import administration
from portal.access.principal import Principal, tenant_for
from portal.access.rights import limit_permissions
from portal.access.rights.limit_permissions import TargetNames
from portal.errors import BadForm, NotPermitted
from portal.formats.query_params import posted
from portal.formats.table_csv import most
from portal.forms.cache import CacheSettingForm
from portal.pages.base import form_action, page, show, submit, unchanged
from portal.reporting import cache_usage
from tenants import registry
from tenants.database.rls import as_tenant
from tenants.errors import BadName, NotAllowed
from tenants.ids import TenantId
from tenants.models import ApiKey, Project, Tenant
from tenants.policy import cache_settings
from tenants.policy.purges import PurgeTarget

MAX_ROWS = 200
#: What the form can purge, with its labels; each but the last has a field of the same name.
PURGEABLE = {"request": _("One request"), "key": _("A key"), "model": _("A model"), "everything": _("Everything")}


@require_GET
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show the current settings, with forms for those who may change them."""
    return _show_cache(request, principal, tenant_for(principal, slug))


@form_action("portal:cache")
@page
def set_setting(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Set the cache of a project or key, replacing its current setting."""
    tenant = tenant_for(principal, slug)
    form = CacheSettingForm(request.POST, projects=_projects(tenant), keys=_live_keys(tenant))

    def change() -> str:
        target = limit_permissions.target_for(principal, tenant, form.target())
        cache_settings.set_setting(principal.actor, target, form.overrides())
        return _("Saved. Every gateway applies it within a second.")

    done = submit(request, form, change, back="portal:cache", slug=slug)
    return done or _show_cache(request, principal, tenant, form=form)


@form_action("portal:cache")
@page
def remove_setting(request: HttpRequest, principal: Principal, slug: str, setting: UUID) -> HttpResponseRedirect:
    """Remove a setting, so that the level above applies."""
    tenant = tenant_for(principal, slug)
    found = limit_permissions.rule_of(
        tenant, limit_permissions.cache_settings_of(principal, tenant), _("cache setting"), setting
    )

    def change() -> str:
        limit_permissions.require_may_change(principal, found)
        cache_settings.remove(principal.actor, found)
        return _("The setting was removed. Every gateway applies it within a second.")

    return _apply(request, tenant, change)


@form_action("portal:cache")
@page
def purge(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Purge everything, or the answers of one model, key or request."""
    tenant = tenant_for(principal, slug)

    def change() -> str:
        limit_permissions.require_may_set(principal, tenant)
        target = _purge_target(request, principal, tenant)
        administration.purge(principal.actor, tenant, target)
        cache_usage.delete(tenant, target)
        return gettext("Purged: %(target)s. Every gateway applies it within a second.") % {
            "target": _purged(target, tenant)
        }

    try:
        return _apply(request, tenant, change)
    except BadName as error:
        problem = gettext("“%(name)s” is not valid. Use %(allowed)s.") % {"name": error.name, "allowed": error.allowed}
    except BadForm as error:
        problem = error.problem
    return _show_cache(request, principal, tenant, purge_problem=problem)


def _show_cache(
    request: HttpRequest,
    principal: Principal,
    tenant: Tenant,
    *,
    form: CacheSettingForm | None = None,
    purge_problem: str = "",
) -> HttpResponse:
    """Show the page, with a form that was refused as it was filled in."""
    projects, keys = _projects(tenant), _live_keys(tenant)
    with as_tenant(TenantId(tenant.id)):
        settings = limit_permissions.cache_settings_of(principal, tenant).order_by("-id")
        context = {
            "policy": registry.policy_of(tenant),
            "settings": list(settings[: most(request, "settings", MAX_ROWS)]),
            "storing_keys": [key for key in keys if "cache:write" in key.scopes],
            "models": limit_permissions.models_of(tenant),
        }
    context |= {
        "may_set": limit_permissions.may_set_any(principal, tenant),
        "is_confined": principal.is_confined_in(tenant.id),
        "stored": cache_usage.stored(tenant) if principal.sees_whole(tenant.id) else None,
        "form": form or CacheSettingForm(projects=projects, keys=keys),
        "purge_problem": purge_problem,
        "purging": request.POST if purge_problem else {},
    }
    status = 400 if form or purge_problem else 200
    return show(request, principal, "portal/cache.html", context, active="cache", tenant=tenant, status=status)


def _projects(tenant: Tenant) -> list[Project]:
    with as_tenant(TenantId(tenant.id)):
        return list(Project.objects.filter(tenant=tenant, archived_at=None).order_by("slug"))


def _live_keys(tenant: Tenant) -> list[ApiKey]:
    with as_tenant(TenantId(tenant.id)):
        live = ApiKey.objects.filter(tenant=tenant, purpose=ApiKey.Purpose.API, revoked_at=None, rotated_to=None)
        return list(live.order_by("name")[:MAX_ROWS])


def _apply(request: HttpRequest, tenant: Tenant, change: Callable[[], str]) -> HttpResponseRedirect:
    """Make a change, show its result as a message, and redirect to the page."""
    try:
        messages.success(request, change())
    except NotAllowed as error:
        messages.error(
            request,
            gettext("Nothing was changed: the %(kind)s %(name)s is %(state)s.")
            % {"kind": error.kind, "name": error.name, "state": error.state},
        )
    except NotPermitted as error:
        messages.error(request, unchanged(error.reason))
    return redirect("portal:cache", slug=tenant.slug)


def _purge_target(request: HttpRequest, principal: Principal, tenant: Tenant) -> PurgeTarget:
    """Read what to purge. Raises BadForm for no choice, for several, and for a field of another choice."""
    chosen = request.POST.getlist("what")
    if len(chosen) != 1 or chosen[0] not in PURGEABLE:
        raise BadForm("Choose what to purge: one request, a key, a model or everything.")
    what = chosen[0]
    filled = {name: text for name in ("request", "key", "model") if (text := posted(request, name))}
    named = filled.pop(what, "")
    if filled:
        others = " and ".join(f"“{PURGEABLE[name]}”" for name in filled)
        raise BadForm(f"“{PURGEABLE[what]}” was chosen, but {others} was filled in as well.")
    if what != "everything" and not named:
        raise BadForm(f"“{PURGEABLE[what]}” was chosen, but its field is empty.")
    if what == "key":
        return limit_permissions.purge_target(principal, tenant, TargetNames(key=_uuid("key", named)))
    if what == "request":
        return limit_permissions.purge_target(principal, tenant, TargetNames(), _uuid("request", named))
    return limit_permissions.purge_target(principal, tenant, TargetNames(model=named))


def _purged(target: PurgeTarget, tenant: Tenant) -> str:
    """Describe exactly what is purged."""
    if target.request_id is not None:
        return gettext("the answer to the request %(request_id)s") % {"request_id": target.request_id}
    if target.key is not None:
        return gettext("all answers that the key %(name)s and the keys it replaced have stored") % {
            "name": target.key.name
        }
    if target.model_name:
        return gettext("every answer of the model %(model_name)s") % {"model_name": target.model_name}
    return gettext("every stored answer of %(name)s") % {"name": tenant.name}


def _uuid(kind: str, text: str) -> UUID:
    """Read an id in Hearth's own form; UUID() also accepts braces and prefixes. Raises BadForm."""
    with suppress(ValueError):
        found = UUID(text)
        if str(found) == text.lower():
            return found
    raise BadForm(f"“{text[:64]}” is not the id of a {kind}.")
