"""The tables of notifications."""

from notifications.models.events import Event
from notifications.models.mail import Mail, MailRefusal
from notifications.models.webhooks import Delivery, DeliveryAttempt, WebhookEndpoint, WebhookSecret

__all__ = ["Delivery", "DeliveryAttempt", "Event", "Mail", "MailRefusal", "WebhookEndpoint", "WebhookSecret"]
