"""``/api/v1/tenants/{tenant}/…/content-log`` and ``…/content/{request}``: prompts and answers that a project keeps."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access import project_scope
from portal.access.principal import tenant_for
from portal.access.rights import content_rights
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses, reject_unknown_fields
from portal.formats import query_params
from portal.reporting.requests import request_content
from portal.reporting.requests.request_content import RequestContent
from tenants.content import content_log
from tenants.content.content_log import MOST_DAYS
from tenants.errors import NotFound
from tenants.models import Project


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentLog:
    """The content log of a project."""

    days: int | None
    stored_bytes: int


class ContentLogSerializer(serializers.Serializer[ContentLog]):
    """Whether a project keeps prompts and answers."""

    days = serializers.IntegerField(
        min_value=1,
        max_value=MOST_DAYS,
        allow_null=True,
        help_text="How long they are kept. null: nothing is kept, and what was kept is deleted.",
    )
    stored_bytes = serializers.IntegerField(read_only=True)


class ErasedSerializer(serializers.Serializer[dict[str, int]]):
    """What was deleted."""

    entries = serializers.IntegerField(read_only=True)


class RequestContentSerializer(serializers.Serializer[RequestContent]):
    """One request's prompt and answer, as its client sent and received them; JSON is indented."""

    request_id = serializers.UUIDField(read_only=True)
    project = serializers.CharField(read_only=True)
    status = serializers.IntegerField(read_only=True, help_text="0: the client disconnected before there was one.")
    is_stream = serializers.BooleanField(read_only=True)
    is_broken_off = serializers.BooleanField(
        read_only=True, help_text="A stream that did not come to its end: its client disconnected, or it failed."
    )
    prompt = serializers.CharField(read_only=True)
    answer = serializers.CharField(read_only=True, help_text="A stream's events one after the other.")
    streamed_text = serializers.CharField(read_only=True, help_text="The text of a stream; empty otherwise.")
    prompt_cut_bytes = serializers.IntegerField(read_only=True, help_text="Left out behind the first 256 KiB.")
    answer_cut_bytes = serializers.IntegerField(read_only=True)
    kept_until = serializers.DateTimeField(read_only=True)


class ContentLogView(ApiView):
    """The content log of a project."""

    @extend_schema(operation_id="get_content_log", responses={200: ContentLogSerializer, **error_responses(404)})
    def get(self, request: Request, tenant: str, project: str) -> Response:
        """Return whether the project keeps prompts and answers. For all who see the project."""
        return _answered(_project(request, tenant, project))

    @extend_schema(
        operation_id="set_content_log",
        request=ContentLogSerializer,
        responses={200: ContentLogSerializer, **error_responses(400, 403, 404, 409)},
    )
    def put(self, request: Request, tenant: str, project: str) -> Response:
        """Switch the content log on or off. For owners and admins of the tenant, signed in; no operator, no key."""
        found = _project(request, tenant, project)
        principal = principal_of(request)
        content_rights.require_may_switch(principal, found.tenant)
        body = ContentLogSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        return _answered(content_log.set_days(principal.actor, found, body.validated_data["days"]))

    @extend_schema(
        operation_id="erase_content_log",
        parameters=[OpenApiParameter("end_user", str, description="Only what was kept of this end user's requests.")],
        responses={200: ErasedSerializer, **error_responses(400, 403, 404, 409)},
    )
    def delete(self, request: Request, tenant: str, project: str) -> Response:
        """Delete what is kept so far. For owners and admins of the tenant, signed in."""
        found = _project(request, tenant, project)
        principal = principal_of(request)
        content_rights.require_may_switch(principal, found.tenant)
        end_user = query_params.text(request.query_params, "end_user")
        return Response({"entries": content_log.erase(principal.actor, found, end_user)})


class RequestContentView(ApiView):
    """The prompt and answer of one request."""

    @extend_schema(
        operation_id="get_request_content",
        responses={200: RequestContentSerializer, **error_responses(403, 404)},
    )
    def get(self, request: Request, tenant: str, request_id: UUID) -> Response:
        """Return what was kept of a request, and record the reading in the tenant's audit log.

        For owners, admins and developers of the tenant, signed in; no operator, no key.
        """
        principal = principal_of(request)
        project = request_content.project_of(tenant_for(principal, tenant), request_id)
        if project is None:
            raise NotFound("request", str(request_id))
        content_rights.require_may_read(principal, project)
        return Response(RequestContentSerializer(request_content.read(principal.actor, project, request_id)).data)


def _project(request: Request, tenant: str, project: str) -> Project:
    principal = principal_of(request)
    return project_scope.project_of(principal, tenant_for(principal, tenant), project)


def _answered(project: Project) -> Response:
    found = ContentLog(days=project.content_log_days, stored_bytes=project.content_bytes)
    return Response(ContentLogSerializer(found).data)
