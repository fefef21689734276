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
    #: Tasks that have claimed it. A second one takes over if the first died.
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    #: Then the body and the response are erased.
    expires_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="deferred_done_has_status", condition=~Q(state="done") | Q(status__isnull=False)
            ),
        )
        indexes = (models.Index(fields=("state", "created_at"), name="deferred_by_state"),)

    def __str__(self) -> str:
        return str(self.id)
