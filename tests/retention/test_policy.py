"""The policy of retention: bounds, versions, and who changed it."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from retention import policy
from retention.models import RetentionPolicy
from tenants.audit import SYSTEM
from tenants.errors import BadName
from tenants.models import AuditEntry

pytestmark = pytest.mark.django_db


def test_a_change_is_a_new_version_and_in_the_audit_log() -> None:
    assert policy.current().version == 0
    assert policy.change(SYSTEM, audit_days=30).version == 1
    assert policy.change(SYSTEM, audit_days=30).version == 1
    changed = policy.change(SYSTEM, requests_months=None, events_days=7)
    assert (changed.version, changed.requests_months, changed.events_days, changed.audit_days) == (2, None, 7, 30)
    entry = AuditEntry.objects.filter(action="retention.changed").latest("id")
    assert entry.before is not None and entry.after is not None
    assert (entry.before["requests_months"], entry.after["requests_months"]) == (13, None)
    with pytest.raises(IntegrityError), transaction.atomic():
        RetentionPolicy.objects.update(audit_days=31)


@pytest.mark.parametrize(
    "changes",
    [
        {"requests_months": 1},
        {"requests_months": 121},
        {"events_days": 0},
        {"deferred_hours": None},
        {"deferred_hours": 25},
        {"audit_days": 29},
        {"audit_days": True},
        {"everything": 1},
    ],
)
def test_values_out_of_bounds_are_refused(changes: dict[str, int | None]) -> None:
    with pytest.raises(BadName):
        policy.change(SYSTEM, **changes)
    assert not RetentionPolicy.objects.exists()
