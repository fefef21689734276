"""Pagination by key, not by offset: page 1000 costs as much as page 1, and new rows do not shift later pages.

Every list orders by a UUIDv7, newest first, so the id of the last row is the whole cursor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.serializers import Serializer

DEFAULT_LIMIT = 50
LARGEST_LIMIT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """At most ``limit`` rows older than ``after``."""

    limit: int
    after: UUID | None


def page_request(request: Request) -> PageRequest:
    """Read ``limit`` and ``after`` from the query. Raises ValidationError naming the parameter."""
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= LARGEST_LIMIT:
        raise ValidationError({"limit": f"Use a whole number from 1 to {LARGEST_LIMIT}."})
    after = request.query_params.get("after")
    try:
        return PageRequest(limit=int(text), after=UUID(after) if after else None)
    except ValueError:
        raise ValidationError({"after": "Use the 'next_after' of the previous page."}) from None


def read_page(rows: QuerySet[Any], page: PageRequest) -> list[Any]:
    """Return the page's rows and one more if another page follows."""
    older = rows if page.after is None else rows.filter(id__lt=page.after)
    return list(older.order_by("-id")[: page.limit + 1])


def page_document(
    rows: Sequence[Any], serializer: type[Serializer[Any]], limit: int, context: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the list's envelope. ``rows`` have ids; one more row than ``limit`` means that another page follows."""
    more = len(rows) > limit
    shown: Any = rows[:limit]
    return {
        "object": "list",
        "data": serializer(shown, many=True, context=context or {}).data,
        "has_more": more,
        "next_after": str(rows[limit - 1].id) if more else None,
    }
