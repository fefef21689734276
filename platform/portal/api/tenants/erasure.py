"""``/api/v1/tenants/{tenant}/erase``: the end of a tenant's personal data."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from redis import RedisError
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access.principal import tenant_for
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.errors import envelope
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses, reject_unknown_fields
from retention import erasure

UNFINISHED = "Redis is unavailable. What the database has is erased; the control role does the rest within an hour."


class ErasureSerializer(serializers.Serializer[erasure.Erased]):
    """How much was erased now: zeros if it was before."""

    people = serializers.IntegerField(read_only=True, help_text="Accounts of people who belong to no other tenant.")
    projects = serializers.IntegerField(read_only=True)
    keys = serializers.IntegerField(read_only=True)
    deferred_requests = serializers.IntegerField(read_only=True)
    redis_keys = serializers.IntegerField(read_only=True)


class EraseSerializer(serializers.Serializer[erasure.Erased]):
    """The confirmation."""

    confirm = serializers.CharField(max_length=63, help_text="The tenant's slug, because this cannot be undone.")


class EraseView(ApiView):
    """Erase a tenant's personal data."""

    without_key = "it goes on where it was interrupted"
    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="erase_tenant",
        request=EraseSerializer,
        responses={200: ErasureSerializer, **error_responses(400, 403, 404, 409, 503)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Erase the personal data of an archived tenant, for good. The ledger, usage counts and statements stay."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        body = EraseSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        if body.validated_data["confirm"] != found.slug:
            raise ValidationError({"confirm": f"Send the tenant's slug, {found.slug}."})
        try:
            return Response(ErasureSerializer(erasure.erase(principal.actor, found)).data)
        except RedisError:
            return envelope(UNFINISHED, status.HTTP_503_SERVICE_UNAVAILABLE, "erasure_unfinished")
