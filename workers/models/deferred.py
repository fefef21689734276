"""Requests that run asynchronously."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from tenants.ids import new_id
from tenants.models import ApiKey, Project, Tenant


class DeferredRequest(models.Model):
    """A request whose client preferred an asynchronous response (RFC 7240, ``respond-async``).

    The body is stored here and never passes through the broker, so no prompt does.
    """

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    key = models.ForeignKey(ApiKey, on_delete=models.PROTECT)
    endpoint = models.CharField(max_length=64)
    headers = models.JSONField(default=dict)
    body = models.BinaryField()
    state = models.CharField(max_length=16, choices=State.choices, default=State.QUEUED)
    status = models.PositiveSmallIntegerField(null=True)
    response_headers = models.JSONField(default=dict)
    response = models.BinaryField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    #: Tasks that have claimed it; the number of the last one is its fence: no earlier one may store a response.
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    #: Attempts that ended with a dead worker or a failed engine, for which the request itself may be the cause.
    crashes = models.PositiveSmallIntegerField(default=0, db_default=0)
    #: When the last attempt started.
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    #: Not claimed before, after an attempt that failed.
    retry_at = models.DateTimeField(null=True)
    #: While it runs: until when its worker is known to live.
    lease_until = models.DateTimeField(null=True)
    #: When it is taken from a worker whose lease ended, unless that worker renews it first.
    takeover_at = models.DateTimeField(null=True)
    #: The Idempotency-Key of its acceptance and the request under it, both as MACs; see ``gateway.pipeline``.
    idempotency_name = models.BinaryField(null=True, unique=True)
    idempotency_request = models.BinaryField(null=True)
    #: Then the row is deleted.
    expires_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="deferred_done_has_status", condition=~Q(state="done") | Q(status__isnull=False)
            ),
        )
        indexes = (
            models.Index(fields=("state", "created_at"), name="deferred_by_state"),
            models.Index(fields=("tenant", "state", "created_at"), name="deferred_by_tenant"),
            models.Index(fields=("tenant", "started_at"), name="deferred_by_turn"),
            models.Index(fields=("expires_at",), name="deferred_by_expiry"),
        )

    def __str__(self) -> str:
        return str(self.id)
