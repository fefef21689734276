"""Pieces that the OpenAPI descriptions of several endpoints share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, inline_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from portal.api.pagination import DEFAULT_LIMIT, LARGEST_LIMIT

_MEANINGS = {
    400: "A value is missing or not allowed; `param` names it.",
    401: "No token or key, or one that opens nothing.",
    403: "You may not do this.",
    404: "There is none, or none that you see.",
    409: "The state of things forbids it.",
    429: "Too many attempts; see `Retry-After`.",
}

PAGE_PARAMETERS = [
    OpenApiParameter("limit", int, description=f"Rows in a page, 1 to {LARGEST_LIMIT}; {DEFAULT_LIMIT} if absent."),
    OpenApiParameter("after", str, description="`next_after` of the page before."),
]
CSV_PARAMETER = OpenApiParameter("format", str, enum=["json", "csv"], description="json if absent.")
PERIOD_PARAMETERS = [
    OpenApiParameter("period", str, description="1h, 6h, 24h (if absent), 7d, 30d or 90d, up to now."),
    OpenApiParameter("from", str, description="Start, ISO 8601; rounded down to a quarter of an hour."),
    OpenApiParameter("to", str, description="End, ISO 8601, not included; rounded up to a quarter of an hour."),
]


class ErrorSerializer(serializers.Serializer[Any]):
    """What was wrong, where, and what is allowed."""

    message = serializers.CharField()
    type = serializers.CharField()
    param = serializers.CharField(allow_null=True)
    code = serializers.CharField()


class RefusalSerializer(serializers.Serializer[Any]):
    """OpenAI's error envelope."""

    error = ErrorSerializer()


def error_responses(*codes: int) -> dict[int, OpenApiResponse]:
    """Return the descriptions of these errors, and of 401, which every endpoint has."""
    return {code: OpenApiResponse(RefusalSerializer, description=_MEANINGS[code]) for code in sorted({401, *codes})}


def page_schema(row: type[serializers.Serializer[Any]], name: str) -> serializers.Serializer[Any]:
    """Return the serializer that describes a page of these rows."""
    return inline_serializer(
        name,
        {
            "object": serializers.CharField(help_text="always `list`"),
            "data": row(many=True),
            "has_more": serializers.BooleanField(),
            "next_after": serializers.CharField(allow_null=True),
        },
    )


def reject_unknown_fields(asked: serializers.Serializer[Any]) -> None:
    """Raise ValidationError for a field that is none: a misspelt one that is ignored is a rule that does not hold.

    Every write of ``/api/v1/`` that takes a body calls it, after ``is_valid``. Looks into nested objects too.
    """
    if complaints := _unknown(asked, asked.initial_data):
        raise ValidationError(complaints)


def _unknown(asked: serializers.Serializer[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first unknown field by name, within the objects it stands in; nothing where all are known."""
    writable = {name: field for name, field in asked.fields.items() if not field.read_only}
    if unknown := sorted(set(given) - writable.keys()):
        return {unknown[0]: "There is no such field, or it may not be set."}
    for name, field in writable.items():
        inner = given.get(name)
        if not isinstance(field, serializers.Serializer) or not isinstance(inner, Mapping):
            continue
        if complaints := _unknown(field, inner):
            return {name: complaints}
    return {}


def wants_csv(request: Request) -> bool:
    """Say whether CSV is asked for. Raises ValidationError for a format that there is not."""
    chosen = request.query_params.get("format", "json")
    if chosen not in {"json", "csv"}:
        raise ValidationError({"format": "Use json or csv."})
    return chosen == "csv"
