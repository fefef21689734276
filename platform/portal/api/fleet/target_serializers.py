"""The API's documents about target loads: what is set, what was learned, and what that was learned from."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from workers.fleet.operations import MAX_DELAY_SECONDS, MAX_TARGET_TOKENS
from workers.fleet.status.load_targets import TargetStatus
from workers.scheduler.scaling.target_learning import Point


class LoadPointSerializer(serializers.Serializer[Point]):
    """What was measured at about one load."""

    tokens = serializers.FloatField(read_only=True, help_text="In flight for one replica.")
    rate = serializers.FloatField(read_only=True, help_text="Tokens that it computed in a second.")
    ttft_seconds = serializers.FloatField(read_only=True, allow_null=True)
    windows = serializers.IntegerField(read_only=True, help_text="Measurements of 20 seconds, 20 at most.")


class TargetStatusSerializer(serializers.Serializer[TargetStatus]):
    """The tokens in flight that one replica in a pool should have, and where that comes from."""

    pool = serializers.CharField(read_only=True)
    tokens = serializers.IntegerField(read_only=True)
    origin = serializers.ChoiceField(choices=("set", "learned", "default"), read_only=True)
    reason = serializers.CharField(read_only=True, help_text="What the points say.")
    measured_at = serializers.DateTimeField(read_only=True, allow_null=True)
    points = LoadPointSerializer(many=True, read_only=True, help_text="In order of load.")


class TargetSerializer(serializers.Serializer[Any]):
    """The target load of one replica, and the seconds before scaling acts."""

    target_tokens_per_replica = serializers.IntegerField(
        min_value=1,
        max_value=MAX_TARGET_TOKENS,
        allow_null=True,
        help_text="Null: learned from the rates that are measured.",
    )
    scale_up_delay_seconds = serializers.FloatField(min_value=0, max_value=MAX_DELAY_SECONDS)
    scale_down_delay_seconds = serializers.FloatField(min_value=0, max_value=MAX_DELAY_SECONDS)
