"""Webhook endpoints, deliveries and events as the API writes and reads them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from notifications.models import Delivery, DeliveryAttempt, Event, WebhookEndpoint
from notifications.webhooks import endpoints
from notifications.webhooks.addresses import LONGEST_URL


class WebhookSerializer(serializers.Serializer[WebhookEndpoint]):
    """An address to which events are posted."""

    id = serializers.UUIDField(read_only=True)
    url = serializers.CharField(max_length=LONGEST_URL, help_text="https, at a public address.")
    about = serializers.CharField(
        max_length=endpoints.LONGEST_ABOUT, allow_blank=True, default="", help_text="What it is for."
    )
    event_types = serializers.ListField(
        child=serializers.CharField(max_length=100),
        max_length=100,
        default=list,
        help_text="Names of `GET /api/v1/event-types`; empty: all, later ones too.",
    )
    state = serializers.SerializerMethodField(
        help_text="active, failing (the last attempts failed), paused, or disabled after days of failure."
    )
    failing_since = serializers.DateTimeField(read_only=True, allow_null=True)
    created_by = serializers.CharField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)

    def get_state(self, endpoint: WebhookEndpoint) -> str:
        """Return its state in one word."""
        return endpoints.state_of(endpoint)


class ChangeWebhookSerializer(serializers.Serializer[Any]):
    """What to change."""

    url = serializers.CharField(max_length=LONGEST_URL, required=False)
    about = serializers.CharField(max_length=endpoints.LONGEST_ABOUT, allow_blank=True, required=False)
    event_types = serializers.ListField(
        child=serializers.CharField(max_length=100), max_length=100, required=False, help_text="Empty: all."
    )
    is_paused = serializers.BooleanField(required=False, help_text="Deliveries wait until it is resumed.")


class NewWebhookSerializer(WebhookSerializer):
    """An endpoint with its newest secret, which is shown only now."""

    secret = serializers.CharField(read_only=True, help_text="`whsec_…`: it signs each request. Shown once.")


class RotateSecretSerializer(serializers.Serializer[Any]):
    """How long the secret of before signs beside the new one."""

    overlap_hours = serializers.IntegerField(
        min_value=0, max_value=endpoints.LONGEST_OVERLAP_HOURS, default=endpoints.DEFAULT_OVERLAP_HOURS
    )


class NotificationEventSerializer(serializers.Serializer[Event]):
    """Something that happened."""

    id = serializers.UUIDField(read_only=True, help_text="The CloudEvents id.")
    type = serializers.CharField(read_only=True)
    subject = serializers.CharField(read_only=True)
    # A declared field, which is no attribute of the class.
    data = serializers.JSONField(read_only=True)  # type: ignore[assignment]
    created_at = serializers.DateTimeField(read_only=True)


class DeliverySerializer(serializers.Serializer[Delivery]):
    """One event for one endpoint."""

    id = serializers.UUIDField(read_only=True)
    event = NotificationEventSerializer(read_only=True)
    state = serializers.CharField(read_only=True, help_text="pending, delivered or dead.")
    attempts = serializers.IntegerField(read_only=True, help_text="Since it was made or replayed.")
    next_attempt_at = serializers.SerializerMethodField(help_text="null: it is not tried again.")
    finished_at = serializers.DateTimeField(read_only=True, allow_null=True)

    def get_next_attempt_at(self, delivery: Delivery) -> str | None:
        """Return when it is tried again at the earliest."""
        return delivery.next_attempt_at.isoformat() if delivery.state == Delivery.State.PENDING else None


class AttemptSerializer(serializers.Serializer[DeliveryAttempt]):
    """One attempt of a delivery."""

    began_at = serializers.DateTimeField(read_only=True)
    duration_ms = serializers.IntegerField(read_only=True)
    status = serializers.IntegerField(read_only=True, allow_null=True, help_text="HTTP status; null: no answer.")
    answer = serializers.CharField(read_only=True, help_text="The first 1,000 bytes of the answer.")
    error = serializers.CharField(read_only=True, help_text="Why it failed; empty: it did not.")


class DeliveryDetailSerializer(DeliverySerializer):
    """A delivery with its attempts, the newest first."""

    log = AttemptSerializer(many=True, read_only=True)


class ReplaySerializer(serializers.Serializer[Any]):
    """What to send again: one delivery, or every event of a range."""

    delivery = serializers.UUIDField(required=False)
    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False, help_text="Exclusive. Without it: up to now.")


class ReplayedSerializer(serializers.Serializer[Any]):
    """How many events are sent again."""

    events = serializers.IntegerField()


class EventTypeSerializer(serializers.Serializer[Any]):
    """A type of event."""

    name = serializers.CharField()
    about = serializers.CharField()
    data_fields = serializers.DictField(child=serializers.CharField(), help_text="The names in its data.")
