"""The audit log of the whole platform or of one tenant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from portal.access import audit_actors
from portal.access.principal import Principal, tenant_for
from portal.errors import BadQuery
from portal.formats import query_params
from portal.formats.table_csv import most
from portal.pages.base import operator_page, page, show, with_query
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import AuditEntry, Tenant

PAGE_ROWS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One changed field. ``before`` is None where it was added, ``after`` where it was removed."""

    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An audit entry with its actor as the reader may see it, and its changed fields."""

    entry: AuditEntry
    actor: str
    changes: tuple[Change, ...]


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the platform's audit log."""
    rows = AuditEntry.objects.select_related("tenant")
    found = _read_page(request, rows, audit_actors.shown_actor(principal))
    return _show(request, principal, found, tenant=None)


@require_GET
@page
def of_tenant(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show the entries about one tenant."""
    tenant = tenant_for(principal, slug)
    actor = audit_actors.shown_actor(principal)
    with as_tenant(TenantId(tenant.id)):
        found = _read_page(request, AuditEntry.objects.filter(tenant=tenant), actor)
    return _show(request, principal, found, tenant=tenant)


def changes(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> tuple[Change, ...]:
    """Return the fields that differ, by name. For a created or deleted object, return its fields that are not empty."""
    if before is None or after is None:
        before, after = _without_empty(before), _without_empty(after)
    old, new = before or {}, after or {}
    return tuple(
        Change(field=field, before=_text(old, field), after=_text(new, field))
        for field in sorted(old.keys() | new.keys())
        if old.get(field) != new.get(field) or (field in old) != (field in new)
    )


def _without_empty(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {field: value for field, value in (values or {}).items() if value not in (None, "", [])}


def _text(values: Mapping[str, Any], field: str) -> str | None:
    if field not in values:
        return None
    value = values[field]
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _read_page(request: HttpRequest, rows: QuerySet[AuditEntry], actor: Combinable) -> list[tuple[AuditEntry, str]]:
    """Return a page of entries, each with its actor."""
    rows = rows.annotate(shown_actor=actor)
    for name, field in (("action", "action"), ("actor", "shown_actor")):
        if value := query_params.text(request.GET, name):
            rows = rows.filter(**{field: value})
    after = request.GET.get("after")
    if after:
        try:
            rows = rows.filter(id__lt=UUID(after))
        except ValueError:
            raise BadQuery("after", after, "the link 'Older' of the previous page") from None
    return [(entry, entry.shown_actor) for entry in rows.order_by("-id")[: most(request, "audit", PAGE_ROWS) + 1]]


def _show(
    request: HttpRequest, principal: Principal, found: list[tuple[AuditEntry, str]], *, tenant: Tenant | None
) -> HttpResponse:
    count = most(request, "audit", PAGE_ROWS)
    shown = found[:count]
    context = {
        "rows": [Row(entry=entry, actor=actor, changes=changes(entry.before, entry.after)) for entry, actor in shown],
        "older": with_query(request, after=str(shown[-1][0].id)) if len(found) > count else None,
        "filters": {name: request.GET[name] for name in ("action", "actor") if request.GET.get(name)},
    }
    active = "tenant-audit" if tenant else "audit"
    return show(request, principal, "portal/audit.html", context, active=active, tenant=tenant)
