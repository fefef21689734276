"""Alerts: what needs an operator, since when, and until when."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from tenants.ids import new_id


class Alert(models.Model):
    """One problem of one thing. A row is made when it is first seen, and raised once it has lasted its patience."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    #: ``alerting.kinds``.
    kind = models.CharField(max_length=32)
    #: What it is about: a deployment, a pool, a node, a host, a model.
    subject = models.CharField(max_length=300)
    #: The machine that sees it, of what only that machine sees: no other one can resolve it. Empty: all see it.
    host = models.CharField(max_length=253, blank=True, default="", db_default="")
    summary = models.CharField(max_length=500)
    first_seen_at = models.DateTimeField(db_default=Now())
    last_seen_at = models.DateTimeField(db_default=Now())
    #: None: it has not lasted long enough yet, so no event was sent.
    raised_at = models.DateTimeField(null=True)
    resolved_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("kind", "subject"), condition=Q(resolved_at=None), name="one_open_alert_of_a_kind"
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}"
