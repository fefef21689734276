"""Responses of the management API that are replayed when a change is sent again."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

from tenants.ids import new_id
from tenants.models import Tenant


class StoredResponse(models.Model):
    """An ``Idempotency-Key`` that was used, and the response of its change. No tenant reads it through the database.

    Without ``status`` its change is running, in a transaction that has locked the row, or was interrupted.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    #: Whose data the response has; None: of no tenant.
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="+")
    #: Who used the key: a user or an API key.
    principal = models.CharField(max_length=64)
    #: SHA-256 of the principal, the method, the path and the key.
    slot = models.BinaryField(max_length=32, unique=True)
    #: SHA-256 of the query and the body.
    request = models.BinaryField(max_length=32)
    #: SHA-256 of what the principal might change then.
    rights = models.BinaryField(max_length=32)
    status = models.PositiveSmallIntegerField(null=True)
    #: Content type and body; None: the body was too large.
    sealed = models.BinaryField(null=True)
    pepper_version = models.PositiveSmallIntegerField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=("principal", "created_at"), name="stored_by_principal"),
            models.Index(fields=("created_at",), name="stored_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.principal} {self.id}"
