"""``/api/v1/retention``: how long records are kept, and what is due to be deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses, reject_unknown_fields
from retention import policy, preview
from retention.models import RetentionPolicy
from retention.policy import BY_NAME

#: Versions in the history, newest first.
MAX_VERSIONS = 50


def _kept(name: str) -> serializers.IntegerField:
    kind = BY_NAME[name]
    never = " null: for ever." if kind.for_ever else ""
    return serializers.IntegerField(
        min_value=kind.smallest,
        max_value=kind.largest,
        required=False,
        allow_null=kind.for_ever,
        help_text=f"{kind.covers}{never}",
    )


class RetentionPolicySerializer(serializers.Serializer[RetentionPolicy]):
    """How long each kind of record is kept. A change makes a new version; version 0 are the defaults."""

    version = serializers.IntegerField(read_only=True)
    requests_months = _kept("requests")
    events_days = _kept("events")
    decisions_days = _kept("decisions")
    deferred_hours = _kept("deferred")
    audit_days = _kept("audit")
    created_at = serializers.DateTimeField(read_only=True, allow_null=True)


class DueSerializer(serializers.Serializer[preview.Due]):
    """What the next run would delete of one kind."""

    kind = serializers.CharField(read_only=True)
    before = serializers.DateTimeField(read_only=True, allow_null=True, help_text="null: nothing goes.")
    rows = serializers.IntegerField(
        read_only=True, help_text=f"What is older, counted up to {preview.MOST_COUNTED:,}; for requests their number."
    )
    months = serializers.ListField(child=serializers.CharField(), read_only=True, help_text="Of requests, as YYYY-MM.")
    oldest = serializers.DateTimeField(read_only=True, allow_null=True, help_text="The oldest record there is.")
    next_at = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="When the oldest record goes; null if it goes now, or never."
    )
    held = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="Months that are due and kept, and why."
    )


class RetentionSerializer(serializers.Serializer[Any]):
    """The policy, its history and what it means now."""

    policy = RetentionPolicySerializer(read_only=True)
    versions = RetentionPolicySerializer(many=True, read_only=True)
    due = DueSerializer(many=True, read_only=True)


class RetentionView(ApiView):
    """The platform's policy of retention."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="get_retention", responses={200: RetentionSerializer, **error_responses(403)})
    def get(self, request: Request) -> Response:
        """Return how long records are kept, and what would be deleted now. Operators only."""
        return Response(RetentionSerializer(document()).data)

    @extend_schema(
        operation_id="change_retention",
        request=RetentionPolicySerializer,
        responses={200: RetentionSerializer, **error_responses(400, 403)},
    )
    def patch(self, request: Request) -> Response:
        """Change how long records are kept; what is older is deleted within an hour. Operators only."""
        body = RetentionPolicySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        policy.change(principal_of(request).actor, **body.validated_data)
        return Response(RetentionSerializer(document()).data)


def document() -> Mapping[str, Any]:
    """Return what the API shows."""
    return {
        "policy": policy.current(),
        "versions": RetentionPolicy.objects.order_by("-version")[:MAX_VERSIONS],
        "due": preview.read(),
    }
