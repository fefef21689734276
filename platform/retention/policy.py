"""How long each kind of record is kept: a platform-wide policy with its history. Operators change it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.utils.translation import gettext_noop as _

from billing.ledger.partitions import Month, month_of
from retention.models import RetentionPolicy
from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName

#: First half of the advisory lock of changes: "ret" in ASCII.
_LOCK = 0x726574


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of record. ``field`` is its field of the policy, whose name ends with its unit."""

    name: str
    field: str
    covers: str
    smallest: int
    largest: int
    #: Whether the policy may keep it for ever.
    for_ever: bool = True

    @property
    def unit(self) -> str:
        """Return the unit of the field: months, days or hours."""
        return self.field.rpartition("_")[2]


KINDS: tuple[Kind, ...] = (
    Kind(
        name="requests",
        field="requests_months",
        covers=_(
            "Rows of single requests, whole months at a time. A month is kept until each tenant's "
            "month is closed. Statements, the ledger and roll-ups stay."
        ),
        smallest=2,
        largest=120,
    ),
    Kind(
        name="events",
        field="events_days",
        covers=_("Transitions of replicas, leases of slots that ended, and waits for slots."),
        smallest=1,
        largest=3650,
    ),
    Kind(
        name="decisions",
        field="decisions_days",
        covers=_("Decisions of scaling, with their inputs."),
        smallest=1,
        largest=3650,
    ),
    Kind(
        name="deferred",
        field="deferred_hours",
        covers=_("Deferred requests that ended, with their responses. All are deleted a day after they were accepted."),
        smallest=1,
        largest=24,
        for_ever=False,
    ),
    Kind(name="audit", field="audit_days", covers=_("The audit log."), smallest=30, largest=3650),
)
BY_NAME = {kind.name: kind for kind in KINDS}
FIELDS = tuple(kind.field for kind in KINDS)


def current() -> RetentionPolicy:
    """Return the policy in force; the defaults, not stored, before the first change."""
    stored = RetentionPolicy.objects.order_by("-version").first()
    return stored or RetentionPolicy(version=0, created_at=None)  # type: ignore[misc]  # the column is not null


@transaction.atomic
def change(actor: Actor, **changes: int | None) -> RetentionPolicy:
    """Add a version with these fields changed; return the version in force, unchanged if nothing differs.

    Raises BadName for an unknown field or a value out of its bounds.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    for field, value in changes.items():
        _check(field, value)
    old = current()
    before: dict[str, Any] = {field: getattr(old, field) for field in FIELDS}
    after = before | changes
    if after == before:
        return old
    new = RetentionPolicy.objects.create(version=old.version + 1, **after)
    audit.record(actor, "retention.changed", ("retention", new.version), before=before, after=after)
    return new


def keeps_since(policy: RetentionPolicy, kind: Kind, now: datetime) -> datetime | None:
    """Return the moment from which on records of this kind are kept; None: all are."""
    kept: int | None = getattr(policy, kind.field)
    if kept is None:
        return None
    if kind.unit == "months":
        return month_of(now).before(kept).begin
    return now - timedelta(**{kind.unit: kept})


def goes_at(policy: RetentionPolicy, kind: Kind, moment: datetime) -> datetime | None:
    """Return when a record of ``moment`` goes; None: it is kept for ever."""
    kept: int | None = getattr(policy, kind.field)
    if kept is None:
        return None
    if kind.unit == "months":
        month: Month = month_of(moment)
        for _ in range(kept + 1):
            month = month.next
        return month.begin
    return moment + timedelta(**{kind.unit: kept})


def _check(field: str, value: int | None) -> None:
    kind = next((each for each in KINDS if each.field == field), None)
    if kind is None:
        raise BadName("retention field", field, ", ".join(FIELDS))
    if value is None and kind.for_ever:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not kind.smallest <= value <= kind.largest:
        otherwise = ", or nothing to keep it for ever" if kind.for_ever else ""
        raise BadName(field, str(value), f"a whole number from {kind.smallest} to {kind.largest}{otherwise}")
