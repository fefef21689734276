"""What the next run would delete, and when the oldest record that is kept goes. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Model, QuerySet
from django.utils import timezone

from retention import policy, usage_partitions
from retention.models import HeldMonth, RetentionPolicy
from retention.policy import KINDS, Kind
from retention.retire import ENDED
from tenants.ids import created_at, first_id_at
from tenants.models import AuditEntry
from workers.models import DeferredRequest, ReplicaEvent, ScaleDecision

#: Rows are counted up to this number.
MOST_COUNTED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """One kind. ``rows`` would be deleted now, MOST_COUNTED and more being MOST_COUNTED; ``kept`` None: for ever."""

    kind: str
    covers: str
    kept: int | None
    unit: str
    #: Records from before this moment go; None: none do.
    before: datetime | None
    rows: int
    #: Months of requests that would go, as YYYY-MM.
    months: tuple[str, ...]
    oldest: datetime | None
    #: When the oldest record goes, if it is not due yet.
    next_at: datetime | None
    #: Why months that are due are kept, by month.
    held: tuple[str, ...] = ()


def read(now: datetime | None = None) -> list[Due]:
    """Return every kind, in the order of KINDS."""
    moment, rules = now or timezone.now(), policy.current()
    return [_requests(kind, rules, moment) if kind.name == "requests" else _rows(kind, rules, moment) for kind in KINDS]


def _requests(kind: Kind, rules: RetentionPolicy, now: datetime) -> Due:
    since = policy.keeps_since(rules, kind, now)
    months = sorted({each.month for each in usage_partitions.due(since)}) if since is not None else []
    oldest = usage_partitions.oldest()
    return Due(
        kind=kind.name,
        covers=kind.covers,
        kept=getattr(rules, kind.field),
        unit=kind.unit,
        before=since,
        rows=sum(map(usage_partitions.requests_in, months)),
        months=tuple(map(str, months)),
        oldest=oldest,
        next_at=None if months or oldest is None else policy.goes_at(rules, kind, oldest),
        held=tuple(f"{each.month}: {each.reason}" for each in HeldMonth.objects.order_by("month")),
    )


def _rows(kind: Kind, rules: RetentionPolicy, now: datetime) -> Due:
    since = policy.keeps_since(rules, kind, now)
    oldest = _oldest(kind)
    rows = 0 if since is None else _older(kind, since).values("pk")[:MOST_COUNTED].count()
    return Due(
        kind=kind.name,
        covers=kind.covers,
        kept=getattr(rules, kind.field),
        unit=kind.unit,
        before=since,
        rows=rows,
        months=(),
        oldest=oldest,
        next_at=None if rows or oldest is None else policy.goes_at(rules, kind, oldest),
    )


_TABLES: dict[str, type[Model]] = {"events": ReplicaEvent, "decisions": ScaleDecision, "audit": AuditEntry}


def _older(kind: Kind, since: datetime) -> QuerySet[Model]:
    if kind.name == "deferred":
        return DeferredRequest.objects.filter(state__in=ENDED, finished_at__lt=since)
    return _TABLES[kind.name]._default_manager.filter(pk__lt=first_id_at(since))


def _oldest(kind: Kind) -> datetime | None:
    if kind.name == "deferred":
        ended = DeferredRequest.objects.filter(state__in=ENDED).order_by("finished_at")
        return ended.values_list("finished_at", flat=True).first()
    first = _TABLES[kind.name]._default_manager.order_by("pk").values_list("pk", flat=True).first()
    return None if first is None else created_at(first)
