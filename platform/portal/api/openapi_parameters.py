"""Parameters and error responses that several endpoints share in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, inline_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from portal.api.pagination import DEFAULT_LIMIT, LARGEST_LIMIT

_DESCRIPTIONS = {
    400: "A value is missing or not valid; `param` names it.",
    401: "The token or key is missing or not valid.",
    403: "The caller may not do this.",
    404: "It does not exist, or the caller may not see it.",
    409: "It conflicts with the current state.",
    422: "The `Idempotency-Key` was used with a different request.",
    429: "Too many attempts; see `Retry-After`.",
    503: "A server is unavailable; `message` says what was done.",
}

PAGE_PARAMETERS = [
    OpenApiParameter("limit", int, description=f"Rows per page, 1 to {LARGEST_LIMIT}; default {DEFAULT_LIMIT}."),
    OpenApiParameter("after", str, description="`next_after` of the previous page."),
]
CSV_PARAMETER = OpenApiParameter("format", str, enum=["json", "csv"], description="Default: json.")
PERIOD_PARAMETERS = [
    OpenApiParameter(
        "period",
        str,
        description="1h, 6h, 24h (default), 7d, 30d or 90d, up to now; days are whole ones, with today. Or a calendar "
        "month, such as 2026-10.",
    ),
    OpenApiParameter("from", str, description="Start, ISO 8601; rounded down to a quarter of an hour."),
    OpenApiParameter("to", str, description="End, ISO 8601, exclusive; rounded up to a quarter of an hour."),
    OpenApiParameter(
        "timezone",
        str,
        description="IANA name of the time zone in which days and months begin at midnight. Default: UTC.",
    ),
]


class ErrorSerializer(serializers.Serializer[Any]):
    """What is wrong, in which field, and what is allowed."""

    message = serializers.CharField()
    type = serializers.CharField()
    param = serializers.CharField(allow_null=True)
    code = serializers.CharField()
    doc_url = serializers.CharField(required=False, help_text="The page that explains the code.")


class RefusalSerializer(serializers.Serializer[Any]):
    """OpenAI's error envelope."""

    error = ErrorSerializer()


def error_responses(*codes: int) -> dict[int, OpenApiResponse]:
    """Return the descriptions of these status codes and of 401, which every endpoint has."""
    return {code: OpenApiResponse(RefusalSerializer, description=_DESCRIPTIONS[code]) for code in sorted({401, *codes})}


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


def reject_unknown_fields(serializer: serializers.Serializer[Any]) -> None:
    """Raise ValidationError for an unknown field, also in nested objects: ignoring a misspelt field would lose a rule.

    Every write of ``/api/v1/`` with a body calls this after ``is_valid``.
    """
    if errors := _unknown(serializer, serializer.initial_data):
        raise ValidationError(errors)


def _unknown(serializer: serializers.Serializer[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first unknown field, nested like the objects around it; empty if all fields are known."""
    writable = {name: field for name, field in serializer.fields.items() if not field.read_only}
    if unknown := sorted(set(data) - writable.keys()):
        return {unknown[0]: "This field does not exist or cannot be set."}
    for name, field in writable.items():
        inner = data.get(name)
        if not isinstance(field, serializers.Serializer) or not isinstance(inner, Mapping):
            continue
        if errors := _unknown(field, inner):
            return {name: errors}
    return {}


def wants_csv(request: Request) -> bool:
    """Return whether the caller wants CSV. Raises ValidationError for an unknown format."""
    chosen = request.query_params.get("format", "json")
    if chosen not in {"json", "csv"}:
        raise ValidationError({"format": "Use json or csv."})
    return chosen == "csv"
