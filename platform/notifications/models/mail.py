"""E-mails about events, and which ones people refuse."""

from __future__ import annotations

from django.db import models
from django.db.models import Q, TextChoices
from django.db.models.functions import Now

from notifications.models.events import Event
from tenants.ids import new_id
from tenants.models import Tenant, User


class Mail(models.Model):
    """One e-mail about one event to one person, or to an address that the event names, or why none is sent."""

    class State(TextChoices):
        PENDING = "pending"
        SENT = "sent"
        #: Not sent on purpose; ``note`` says why.
        SKIPPED = "skipped"
        #: Given up: after a day of attempts, or at once where the server refused the address or the message for good.
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    event = models.ForeignKey(Event, on_delete=models.CASCADE, related_name="mails")
    #: The event's.
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="+")
    #: None: the address is no person's here, such as one of a billing account.
    user = models.ForeignKey(User, null=True, on_delete=models.CASCADE, related_name="mails")
    address = models.CharField(max_length=254)
    state = models.CharField(max_length=16, choices=State.choices, default=State.PENDING)
    #: Why it was skipped, or what the last attempt failed with.
    note = models.CharField(max_length=300, blank=True, default="")
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(db_default=Now())
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    sent_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("event", "user"), name="mail_once"),
            models.UniqueConstraint(fields=("event", "address"), condition=Q(user=None), name="mail_to_address_once"),
        )
        indexes = (
            models.Index(fields=("next_attempt_at",), condition=Q(state="pending"), name="mails_due"),
            models.Index(fields=("user", "-created_at"), name="mails_by_user"),
        )

    def __str__(self) -> str:
        return f"{self.event_id} to {self.address}"


class MailRefusal(models.Model):
    """A person does not want e-mails of a type that is optional."""

    id = models.BigAutoField(primary_key=True)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="mail_refusals")
    event_type = models.CharField(max_length=100)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("user", "event_type"), name="mail_refusal_once"),)

    def __str__(self) -> str:
        return f"{self.user_id} {self.event_type}"
