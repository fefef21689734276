"""The tables of notifications."""

from notifications.models.events import Event
from notifications.models.webhooks import Delivery, DeliveryAttempt, WebhookEndpoint, WebhookSecret

__all__ = ["Delivery", "DeliveryAttempt", "Event", "WebhookEndpoint", "WebhookSecret"]
