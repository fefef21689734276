"""The pages of OpenAI's admin API as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers


def page_of(name: str, result: serializers.Serializer[Any]) -> serializers.Serializer[Any]:
    bucket = inline_serializer(
        f"{name}Bucket",
        {
            "object": serializers.CharField(help_text="always `bucket`"),
            "start_time": serializers.IntegerField(),
            "end_time": serializers.IntegerField(),
            "results": result,
        },
        many=True,
    )
    return inline_serializer(
        f"{name}Page",
        {
            "object": serializers.CharField(help_text="always `page`"),
            "data": bucket,
            "has_more": serializers.BooleanField(),
            "next_page": serializers.CharField(allow_null=True),
        },
    )


USAGE_RESULT = inline_serializer(
    "OrganizationUsageResult",
    {
        "object": serializers.CharField(help_text="`organization.usage.completions.result`, or of embeddings"),
        "input_tokens": serializers.IntegerField(help_text="With the cached ones; of a prediction hit none."),
        "input_cached_tokens": serializers.IntegerField(help_text="From engines' prefix caches. Not of embeddings."),
        "input_uncached_tokens": serializers.IntegerField(help_text="Without cache writes. Not of embeddings."),
        "input_cache_write_tokens": serializers.IntegerField(
            help_text="Written to engines' caches. Not of embeddings."
        ),
        "output_tokens": serializers.IntegerField(help_text="Not of embeddings."),
        "num_model_requests": serializers.IntegerField(),
        "project_id": serializers.CharField(allow_null=True, help_text="null: not split by it."),
        "api_key_id": serializers.CharField(allow_null=True, help_text="null: not split by it."),
        "model": serializers.CharField(allow_null=True, help_text="null: not split by it."),
        "user_id": serializers.CharField(allow_null=True, help_text="always null"),
        "batch": serializers.BooleanField(allow_null=True, help_text="false if split by it. Not of embeddings."),
        "service_tier": serializers.CharField(allow_null=True, help_text="always null. Not of embeddings."),
        "api_source": serializers.CharField(
            allow_null=True, help_text="`unlabeled` if split by it. Not of embeddings."
        ),
    },
    many=True,
)
COSTS_RESULT = inline_serializer(
    "OrganizationCostsResult",
    {
        "object": serializers.CharField(help_text="always `organization.costs.result`"),
        "amount": inline_serializer(
            "OrganizationCostsAmount",
            {
                "value": serializers.FloatField(help_text="At list prices, in units of the currency."),
                "currency": serializers.CharField(help_text="In lower case."),
            },
        ),
        "line_item": serializers.CharField(allow_null=True, help_text="The model; null: not split by it."),
        "project_id": serializers.CharField(allow_null=True, help_text="null: not split by it."),
        "api_key_id": serializers.CharField(allow_null=True, help_text="null: not split by it."),
        "user_id": serializers.CharField(allow_null=True, help_text="always null"),
        "api_source": serializers.CharField(allow_null=True, help_text="`unlabeled` if split by it."),
        "quantity": serializers.FloatField(allow_null=True, help_text="always null"),
    },
    many=True,
)
