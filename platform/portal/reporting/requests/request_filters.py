"""The filters of lists of requests, read from a query: the same parameters for pages, the API and CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, get_args
from uuid import UUID

from django.db.models import Q, QuerySet

from billing.models import UsageRecord
from billing.reports.usage import Errors, Filters
from portal.errors import BadQuery
from portal.formats import query_params
from portal.reporting.periods import Period
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.keys import keys
from tenants.models import ApiKey, Project, User

STATES = tuple(UsageRecord.State.values)
CACHE_RESULTS = ("hit", "miss", "coalesced", "bypass")
FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter")
ROUTE_REASONS = ("prefix", "session", "load", "only")
#: The values of the parameter ``errors``, and whose errors they list; ``1`` is of earlier links.
ERRORS: Mapping[str, Errors | None] = {
    "1": "all",
    "true": "all",
    "false": None,
    **{each: each for each in get_args(Errors)},
}
#: The parameters, beside those of the period.
NAMES = (
    *("id", "key", "project", "member", "end_user", "tag", "model", "cache", "state", "status", "code"),
    *("errors", "finish", "route", "replica"),
)
#: Keys that one filter may stand for.
MOST_KEYS = 1000


def read(
    query: Mapping[str, str], period: Period, tenant_id: TenantId | None, *, knows_replicas: bool = False
) -> Filters:
    """Return the filters of a query; ``tenant_id`` None: of all tenants. Raises BadQuery.

    A key, a project and a member may be named in words, which are looked up behind the tenant's row-level security.
    ``knows_replicas``: the reader may name one, which only operators may.
    """
    errors = one_of(query, "errors", tuple(ERRORS))
    return Filters(
        start=period.start,
        end=period.end,
        project_ids=_projects(query, tenant_id),
        key_ids=_keys(query, tenant_id),
        model_name=query_params.text(query, "model"),
        state=one_of(query, "state", STATES),
        cache_result=one_of(query, "cache", CACHE_RESULTS),
        finish_reason=query_params.text(query, "finish"),
        route_reason=query_params.text(query, "route"),
        http_status=_status(query),
        error_code=query_params.text(query, "code"),
        errors=ERRORS[errors or "false"],
        end_user=query_params.text(query, "end_user"),
        tag=query_params.tag(query),
        replica_id=uuid(query, "replica") if knows_replicas else None,
        request_id=query_params.text(query, "id"),
    )


def one_of(query: Mapping[str, str], name: str, allowed: Sequence[str]) -> str | None:
    """Return a parameter that has one of these values; None if absent or empty. Raises BadQuery."""
    value = query.get(name) or None
    if value is not None and value not in allowed:
        raise BadQuery(name, value, f"one of {', '.join(allowed)}")
    return value


def uuid(query: Mapping[str, str], name: str) -> UUID | None:
    """Return a parameter that is an id; None if absent or empty. Raises BadQuery."""
    value = query.get(name)
    try:
        return UUID(value) if value else None
    except ValueError:
        raise BadQuery(name, value or "", "an id") from None


def _status(query: Mapping[str, str]) -> int | None:
    value = query.get("status") or None
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) == 3):
        raise BadQuery("status", value, "an HTTP status such as 429")
    return int(value)


def _projects(query: Mapping[str, str], tenant_id: TenantId | None) -> Sequence[UUID] | None:
    """Return the projects with this id, slug or name. Raises BadQuery if there is none."""
    text = query_params.text(query, "project")
    if text is None:
        return None
    if (identity := _id(text)) is not None:
        return (identity,)
    with nullcontext() if tenant_id is None else as_tenant(tenant_id):
        found = _ids(Project.objects.filter(Q(slug=text) | Q(name=text)), tenant_id)
    if not found:
        raise BadQuery("project", text, "the slug or the id of a project")
    return found


def _keys(query: Mapping[str, str], tenant_id: TenantId | None) -> Sequence[UUID] | None:
    """Return the keys with this id, visible beginning or name, and those that they replaced; or a member's.

    Raises BadQuery.
    """
    text, member = query_params.text(query, "key"), query_params.text(query, "member")
    if text is None and member is None:
        return None
    rows, identity = ApiKey.objects.all(), None if text is None else _id(text)
    if text is not None:
        rows = rows.filter(_named(text) if identity is None else Q(id=identity))
    if member is not None:
        rows = rows.filter(created_by_id__in=list(User.objects.filter(username=member).values_list("id", flat=True)))
    with nullcontext() if tenant_id is None else as_tenant(tenant_id):
        found = _ids(rows, tenant_id)
        if text is not None and member is None:
            found = tuple(set().union(*keys.lineages(found).values()))
            if not found and identity is not None:
                found = (identity,)  # it is deleted, and its requests are not
    if not found and text is not None and identity is None:
        raise BadQuery("key", text, "the name, the visible beginning (hk_…) or the id of a key")
    return found


def _named(text: str) -> Q:
    """Return the condition for a key's name, or for what is visible of it: ``hk_`` and the public id."""
    public = text.removeprefix("hk_").partition("_")[0]
    return Q(name=text) | Q(public_id=public)


def _ids(rows: QuerySet[Any], tenant_id: TenantId | None) -> tuple[UUID, ...]:
    own = rows if tenant_id is None else rows.filter(tenant_id=tenant_id)
    return tuple(own.values_list("id", flat=True)[:MOST_KEYS])


def _id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
