"""Webhook endpoints, what is delivered to them, and each attempt."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q, TextChoices
from django.db.models.functions import Now

from notifications.models.events import Event
from tenants.ids import new_id
from tenants.models import Tenant


class WebhookEndpoint(models.Model):
    """An address to which events are posted: a tenant's own, or the operators' for every tenant and the platform."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    #: None: the operators'.
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="webhook_endpoints")
    url = models.CharField(max_length=2000)
    about = models.CharField(max_length=200, blank=True, default="")
    #: Names of event types; empty: all that it may get.
    event_types = ArrayField(models.CharField(max_length=100), default=list, blank=True)
    is_paused = models.BooleanField(default=False)
    #: Set after long failure; somebody has to resume it.
    disabled_at = models.DateTimeField(null=True)
    #: Since when every attempt has failed; None: the last one succeeded, or there was none.
    failing_since = models.DateTimeField(null=True)
    failures = models.PositiveIntegerField(default=0)
    #: Not tried before, because attempts failed.
    resume_at = models.DateTimeField(null=True)
    #: A process sends to it until then; a process that dies leaves it to the next one.
    busy_until = models.DateTimeField(null=True)
    last_tried_at = models.DateTimeField(null=True)
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (models.Index(fields=("tenant", "-id"), name="endpoints_by_tenant"),)

    def __str__(self) -> str:
        return self.url


class WebhookSecret(models.Model):
    """A sealed signing secret. An endpoint has one that stays, and until it expires the one before."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    endpoint = models.ForeignKey(WebhookEndpoint, on_delete=models.CASCADE, related_name="secrets")
    sealed = models.BinaryField()
    pepper_version = models.PositiveSmallIntegerField()
    #: None: until it is rotated.
    expires_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("endpoint",), condition=Q(expires_at=None), name="one_current_webhook_secret"
            ),
        )

    def __str__(self) -> str:
        return f"{self.endpoint_id}"


class Delivery(models.Model):
    """One event for one endpoint."""

    class State(TextChoices):
        PENDING = "pending"
        DELIVERED = "delivered"
        #: Given up, after days of attempts.
        DEAD = "dead"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    endpoint = models.ForeignKey(WebhookEndpoint, on_delete=models.CASCADE, related_name="deliveries")
    event = models.ForeignKey(Event, on_delete=models.PROTECT, related_name="deliveries")
    #: The endpoint's.
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="deliveries")
    state = models.CharField(max_length=16, choices=State.choices, default=State.PENDING)
    attempts = models.PositiveIntegerField(default=0)
    #: When it was made or replayed. Attempts end a fixed time after it.
    begun_at = models.DateTimeField(db_default=Now())
    next_attempt_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("endpoint", "event"), name="delivery_once"),)
        indexes = (
            models.Index(fields=("endpoint", "-id"), name="deliveries_by_endpoint"),
            models.Index(fields=("endpoint", "next_attempt_at"), condition=Q(state="pending"), name="deliveries_due"),
        )

    def __str__(self) -> str:
        return f"{self.event_id} to {self.endpoint_id}"


class DeliveryAttempt(models.Model):
    """One attempt of a delivery, and what came back."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="log")
    #: The endpoint's.
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="+")
    began_at = models.DateTimeField()
    duration_ms = models.PositiveIntegerField()
    #: HTTP status; None: there was no answer.
    status = models.PositiveSmallIntegerField(null=True)
    #: The first bytes of the answer, as text.
    answer = models.CharField(max_length=1000, blank=True, default="")
    #: Why there was no answer, or why this one does not count.
    error = models.CharField(max_length=300, blank=True, default="")

    class Meta:
        indexes = (models.Index(fields=("delivery", "-id"), name="attempts_by_delivery"),)

    def __str__(self) -> str:
        return f"{self.delivery_id} {self.status}"
