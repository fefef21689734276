"""``/v1/organization``: OpenAI's admin API for usage and costs, so that its SDKs and dashboards work unmodified.

An organization is a tenant: that of the key, or for operators the one that the header ``OpenAI-Organization`` names.
"""

from __future__ import annotations

from dataclasses import replace

from django.db.models import Q
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound as UnknownPath
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from billing.errors import TooManyRequests
from billing.reports import buckets
from billing.reports.buckets import Bucket
from catalogue.models import Model
from portal.access.principal import own_tenants, tenant_for
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses
from portal.api.organization import query, results
from portal.api.organization.query import Query
from portal.api.organization.serializers import COSTS_RESULT, USAGE_RESULT, page_of
from portal.errors import BadQuery
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import Tenant
from workers.engines.driver import serves_embeddings

ORGANIZATION = "OpenAI-Organization"
#: Kinds of usage that OpenAI reports and Hearth does not have: their buckets are empty.
UNSERVED = (
    "moderations",
    "images",
    "audio_speeches",
    "audio_transcriptions",
    "vector_stores",
    "code_interpreter_sessions",
    "file_search_calls",
    "web_search_calls",
)
KINDS = ("completions", "embeddings", *UNSERVED)
SPLITS = ("project_id", "api_key_id", "model", "user_id", "batch", "service_tier", "api_source")
COST_SPLITS = ("project_id", "api_key_id", "line_item", "user_id", "api_source")
_TIMES = [
    OpenApiParameter(
        "start_time", int, required=True, description="Unix seconds, rounded down to a quarter of an hour."
    ),
    OpenApiParameter("end_time", int, description="Unix seconds, exclusive, rounded up. Default: now."),
    OpenApiParameter("page", str, description="`next_page` of the previous page."),
    OpenApiParameter("project_ids[]", str, many=True, description="Ids of projects."),
    OpenApiParameter("api_key_ids[]", str, many=True, description="Ids of keys."),
    OpenApiParameter(ORGANIZATION, str, OpenApiParameter.HEADER, description="The tenant. Default: that of the key."),
]


class UsageView(ApiView):
    """Usage by kind."""

    @extend_schema(
        operation_id="get_organization_usage",
        parameters=[
            OpenApiParameter(
                "kind",
                str,
                OpenApiParameter.PATH,
                enum=KINDS,
                description="completions: all models that write text. The others but embeddings are always empty.",
            ),
            *_TIMES,
            OpenApiParameter("bucket_width", str, enum=["1m", "1h", "1d"], description="Default: 1d."),
            OpenApiParameter(
                "limit",
                int,
                description="Buckets per page: at most 31 days, 168 hours, 1440 minutes. Default: 7, 24, 60.",
            ),
            OpenApiParameter("group_by[]", str, enum=SPLITS, many=True),
            OpenApiParameter("models[]", str, many=True, description="Names of models."),
            OpenApiParameter("batch", bool, description="true: batch jobs alone, of which there are none."),
        ],
        responses={200: page_of("OrganizationUsage", USAGE_RESULT), **error_responses(400, 403, 404)},
    )
    def get(self, request: Request, kind: str) -> Response:
        """Return a page of buckets, oldest first, with what each group used. Days and hours are those of UTC."""
        if kind not in KINDS:
            raise UnknownPath("There is no such kind of usage.", "unknown_path")
        asked = query.read(request.query_params, timezone.now(), limits=query.LIMITS, splits=SPLITS)
        found = _read(_tenant(request), request, asked, kind)
        return Response(results.page(asked, found, lambda group: results.usage(kind, asked, group)))


class CostsView(ApiView):
    """Costs."""

    @extend_schema(
        operation_id="get_organization_costs",
        parameters=[
            *_TIMES,
            OpenApiParameter("bucket_width", str, enum=["1d"]),
            OpenApiParameter("limit", int, description="Buckets per page, 1 to 180. Default: 7."),
            OpenApiParameter("group_by[]", str, enum=COST_SPLITS, many=True),
            OpenApiParameter("line_items[]", str, many=True, description="Names of models."),
        ],
        responses={200: page_of("OrganizationCosts", COSTS_RESULT), **error_responses(400, 403, 404)},
    )
    def get(self, request: Request) -> Response:
        """Return a page of days, oldest first, with what each group's requests cost at list prices."""
        asked = query.read(request.query_params, timezone.now(), limits=query.COST_LIMITS, splits=COST_SPLITS)
        tenant = _tenant(request)
        found = _read(tenant, request, asked, None)
        return Response(results.page(asked, found, lambda group: results.cost(tenant.currency, asked, group)))


def _tenant(request: Request) -> Tenant:
    """Return the organization. Raises NotFound for one that the caller may not see, ValidationError without one."""
    principal = principal_of(request)
    named = request.headers.get(ORGANIZATION, "")
    if named:
        if "\0" in named:
            raise NotFound("tenant", named)
        return tenant_for(principal, named)
    own = [] if principal.is_operator else own_tenants(principal)
    if len(own) != 1:
        message = f"Name the tenant: send its slug in the header {ORGANIZATION}, as OpenAI(organization=…) does."
        raise ValidationError({ORGANIZATION: message})
    return own[0]


def _read(tenant: Tenant, request: Request, asked: Query, kind: str | None) -> tuple[Bucket, ...]:
    """Return the page's buckets; ``kind`` None: of all models. Raises NotFound, BadQuery."""
    tenant_id, selection = TenantId(tenant.id), asked.selection
    own = principal_of(request).project_id
    if own is not None:
        if selection.project_ids is not None and (strange := selection.project_ids - {own}):
            raise NotFound("project", str(min(strange)))
        selection = replace(selection, project_ids=frozenset({own}))
    if kind in UNSERVED or asked.batch:
        return buckets.empty(asked.edges)
    if kind is not None:
        with as_tenant(tenant_id):
            used = buckets.models_used(tenant_id, asked.edges[0], asked.edges[-1])
        # All models, because a tenant may have used one that it sees no more.
        embedding = _embedding_models(used)
        selection = selection.only(embedding) if kind == "embeddings" else selection.without(embedding)
    with as_tenant(tenant_id):
        try:
            found = buckets.buckets(tenant_id, asked.edges, asked.by, selection)
        except TooManyRequests as error:
            raise BadQuery("limit", str(len(asked.edges) - 1), error.allowed) from None
    if len(asked.edges) > 1 and not found:
        raise BadQuery("group_by", ", ".join(sorted(asked.splits)), "fewer fields: a bucket has too many groups")
    return found


def _embedding_models(names: frozenset[str]) -> frozenset[str]:
    """Return those of these models that serve embeddings, also under a name that is now an alias."""
    found: set[str] = set()
    for model in Model.objects.filter(Q(name__in=names) | Q(aliases__name__in=names)).distinct():
        revision = model.revisions.filter(superseded_at=None).first()
        if revision is not None and serves_embeddings(revision.engine_args):
            found |= {model.name, *model.aliases.values_list("name", flat=True)}
    return frozenset(found & names)
