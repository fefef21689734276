"""What the search box finds: one request by its id, and what requests can be listed by.

A member finds only what belongs to their tenants, each read behind its row-level security; an operator finds all.
Every look-up is served by an index or reads a small table, such as that of invoices with one for each month of a
tenant, and returns a few matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import Q, QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext, gettext_noop

from billing.models import CreditNote, Invoice, UsageRollup
from billing.reports import usage
from billing.reports.usage import Filters
from catalogue.models import Model
from portal.access.principal import Principal, own_tenants
from tenants.database.rls import as_tenant
from tenants.ids import TenantId, created_at
from tenants.models import ApiKey, Project, Tenant

#: Matches of each kind.
MOST = 8
#: The tenants of one person that are searched.
MOST_TENANTS = 20
#: How far back clients' ids, beginnings of ids and end users are looked for, and codes of errors, which no index has.
BACK = timedelta(days=30)
BACK_FOR_CODES = timedelta(days=1)
#: The period of the lists that matches lead to.
LISTED = "7d"
#: An HTTP status that a request can end with.
_STATUS = re.compile(r"[1-5][0-9]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One thing that was found, and the page that shows it."""

    kind: str
    name: str
    detail: str = ""
    link: str
    #: When it happened, of a request.
    at: datetime | None = None


def find(principal: Principal, text: str) -> list[Match]:
    """Return what this text may mean, requests first."""
    if principal.is_operator:
        slugs = dict(Tenant.objects.values_list("id", "slug"))
        models = Model.objects.filter(name__icontains=text).order_by("name").values_list("name", flat=True)[:MOST]
        return [
            *_requests(text, None, slugs),
            *_tenants(text),
            *_invoices(text, None, slugs),
            *_named(text, None, ""),
            *_models(models, ""),
        ]
    found: list[Match] = []
    for tenant in own_tenants(principal)[:MOST_TENANTS]:
        tenant_id = TenantId(tenant.id)
        with as_tenant(tenant_id):
            found += _requests(text, tenant_id, {tenant.id: tenant.slug})
            if principal.handles_bills_of(tenant.id):
                found += _invoices(text, tenant_id, {tenant.id: tenant.slug})
            found += _named(text, tenant_id, tenant.slug)
            found += _models(_models_used(text, tenant_id), tenant.slug)
    return sorted(found, key=lambda match: match.kind != "Request")


def _requests(text: str, tenant_id: TenantId | None, slugs: dict[UUID, str]) -> Iterator[Match]:
    """Yield the requests with this id, or whose id begins so, or whose client sent this id."""
    filters = Filters(start=timezone.now() - BACK, request_id=text, purpose=None)
    for row in usage.requests(tenant_id, limit=MOST, filters=filters):
        if row.tenant_id in slugs:
            yield Match(
                kind=gettext_noop("Request"),
                name=str(row.id),
                detail=" · ".join(filter(None, (slugs[row.tenant_id], row.model_name, row.error_code or row.state))),
                link=reverse("portal:request", args=[slugs[row.tenant_id], row.id]),
                at=created_at(row.id),
            )


def _named(text: str, tenant_id: TenantId | None, slug: str) -> Iterator[Match]:
    """Yield keys, projects, end users, and a tag, an HTTP status or a code of errors if the text is one."""
    public = text.removeprefix("hk_").partition("_")[0]
    keys = ApiKey.objects.filter(Q(name__icontains=text) | Q(public_id__startswith=public)).select_related("tenant")
    for key in _own(keys, tenant_id):
        yield Match(
            kind=gettext_noop("Key"),
            name=key.name,
            detail=gettext("hk_%(public_id)s of %(slug)s") % {"public_id": key.public_id, "slug": key.tenant.slug},
            link=_list(key.tenant.slug, key=f"hk_{key.public_id}"),
        )
    projects = Project.objects.filter(Q(name__icontains=text) | Q(slug__icontains=text)).select_related("tenant")
    for project in _own(projects, tenant_id):
        yield Match(
            kind=gettext_noop("Project"),
            name=project.slug,
            detail=gettext("%(name)s of %(slug)s") % {"name": project.name, "slug": project.tenant.slug},
            link=_list(project.tenant.slug, project=project.slug),
        )
    if usage.requests(tenant_id, limit=1, filters=Filters(start=timezone.now() - BACK, end_user=text)):
        yield Match(kind=gettext_noop("End user"), name=text, detail=slug, link=_list(slug, end_user=text))
    name, separator, _ = text.partition("=")
    if name and separator:
        yield Match(kind=gettext_noop("Tag"), name=text, detail=slug, link=_list(slug, tag=text))
    if _STATUS.fullmatch(text):  # not looked up, because no index has it
        yield Match(kind=gettext_noop("HTTP status"), name=text, detail=slug, link=_list(slug, status=text))
    if _is_error_code(tenant_id, text):
        yield Match(kind=gettext_noop("Error code"), name=text, detail=slug, link=_list(slug, code=text))


def _is_error_code(tenant_id: TenantId | None, text: str) -> bool:
    filters = Filters(start=timezone.now() - BACK_FOR_CODES, error_code=text)
    return "_" in text and bool(usage.requests(tenant_id, limit=1, filters=filters))


def _tenants(text: str) -> Iterator[Match]:
    found = Tenant.objects.filter(Q(slug__icontains=text) | Q(name__icontains=text)).exclude(
        state=Tenant.State.ARCHIVED
    )
    for tenant in found.order_by("slug")[:MOST]:
        yield Match(
            kind=gettext_noop("Tenant"),
            name=tenant.slug,
            detail=tenant.name,
            link=reverse("portal:tenant", args=[tenant.slug]),
        )


def _invoices(text: str, tenant_id: TenantId | None, slugs: dict[UUID, str]) -> Iterator[Match]:
    """Yield the invoices whose number, or that of a credit note, has the text."""
    notes = CreditNote.objects.filter(number__icontains=text)  # by itself: joined, no row could be skipped
    rows = Invoice.objects.filter(Q(number__icontains=text) | Q(id__in=notes.values("invoice_id")))
    for each in _own(rows.only("number", "tenant_id", "year", "month", "state"), tenant_id):
        yield Match(
            kind=gettext_noop("Invoice"),
            name=each.number,
            detail=" · ".join((slugs[each.tenant_id], each.period, each.state)),
            link=reverse("portal:invoice", args=[slugs[each.tenant_id], each.id]),
        )


def _models(names: Iterable[str], slug: str) -> Iterator[Match]:
    for name in names:
        yield Match(kind=gettext_noop("Model"), name=name, detail=slug, link=_list(slug, model=name))


def _models_used(text: str, tenant_id: TenantId) -> Iterable[str]:
    """Return the models that a tenant used lately whose names contain the text."""
    rows = UsageRollup.objects.filter(tenant_id=tenant_id, starts_at__gte=timezone.now() - BACK)
    found = rows.filter(model_name__icontains=text).order_by("model_name").values_list("model_name", flat=True)
    return found.distinct()[:MOST]


def _own(rows: QuerySet[Any], tenant_id: TenantId | None) -> Sequence[Any]:
    own = rows if tenant_id is None else rows.filter(tenant_id=tenant_id)
    return list(own.order_by("-id")[:MOST])


def _list(slug: str, **filters: str) -> str:
    """Return the address of the list of requests with these filters: a tenant's, or that of all."""
    path = reverse("portal:tenant-requests", args=[slug]) if slug else reverse("portal:requests")
    return f"{path}?{urlencode({'period': LISTED, **filters})}"
