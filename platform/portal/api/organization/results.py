"""Buckets as OpenAI's admin API writes them. A field that usage is not split by is null."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from billing.models import NO_KEY
from billing.reports.buckets import Bucket, Group
from portal.api.organization.query import Query

PICO_PER_UNIT = 10**12


def page(asked: Query, found: tuple[Bucket, ...], result: Callable[[Group], dict[str, Any]]) -> dict[str, Any]:
    """Return the page's document."""
    following = asked.next_page(found)
    return {
        "object": "page",
        "data": [
            {
                "object": "bucket",
                "start_time": int(bucket.start.timestamp()),
                "end_time": int(bucket.end.timestamp()),
                "results": [result(group) for group in bucket.groups],
            }
            for bucket in found
        ],
        "has_more": following is not None,
        "next_page": following,
    }


def usage(kind: str, asked: Query, group: Group) -> dict[str, Any]:
    """Return what one group used, as completions or as embeddings."""
    prompt = group.prompt_tokens + group.cached_prompt_tokens
    found = {
        "object": f"organization.usage.{kind}.result",
        "input_tokens": prompt,
        "num_model_requests": group.requests,
        "model": group.model_name,
        **_split(group),
    }
    if kind == "embeddings":
        return found
    return found | {
        "input_cached_tokens": group.cached_prompt_tokens,
        "input_uncached_tokens": group.prompt_tokens - group.cache_write_tokens,
        "input_cache_write_tokens": group.cache_write_tokens,
        "output_tokens": group.completion_tokens,
        "batch": False if "batch" in asked.splits else None,
        "service_tier": None,
        "api_source": _source(asked),
    }


def cost(currency: str, asked: Query, group: Group) -> dict[str, Any]:
    """Return what one group's requests cost at list prices."""
    return {
        "object": "organization.costs.result",
        "amount": {"value": group.amount_pico / PICO_PER_UNIT, "currency": currency.lower()},
        "line_item": group.model_name,
        **_split(group),
        "api_source": _source(asked),
        "quantity": None,
        "quantity_unit": None,
    }


def _split(group: Group) -> dict[str, Any]:
    """Return the fields that usage and costs share. Roll-ups of earlier releases do not distinguish keys."""
    key = group.key_id
    return {
        "project_id": None if group.project_id is None else str(group.project_id),
        "api_key_id": None if key in {None, NO_KEY} else str(key),
        "user_id": None,
    }


def _source(asked: Query) -> str | None:
    return "unlabeled" if "api_source" in asked.splits else None
