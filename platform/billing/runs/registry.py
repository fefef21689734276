"""Begin runs, stop them, and read how far they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Count, QuerySet
from django.utils import timezone

from billing import second_person
from billing.invoices import issuers
from billing.models import BankLine, BillingRun, BillingRunPart
from billing.months import overview
from tenants import audit
from tenants.audit import Actor
from tenants.errors import NotFound
from tenants.models import Tenant

Kind, Outcome = BillingRun.Kind, BillingRunPart.Outcome
#: So long a run is kept after its end; the next one that begins deletes older ones. The audit log names them longer.
KEPT = timedelta(days=90)
#: Number of the advisory lock of what begins: "brun" in ASCII.
_LOCK = int.from_bytes(b"brun")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A tenant, by its slug, or a line of a bank statement, by its reference, for which nothing was done, and why."""

    subject: str
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is."""

    run: BillingRun
    counts: Mapping[str, int]
    problems: Sequence[Problem]

    @property
    def total(self) -> int:
        """Return of how many tenants or lines it is."""
        return sum(self.counts.values())

    @property
    def over(self) -> int:
        """Return of how many of them nothing more is to be done."""
        return self.total - self.counts[Outcome.WAITING]

    @property
    def is_running(self) -> bool:
        """Return whether more is done, or will be."""
        return self.run.finished_at is None

    @property
    def state(self) -> str:
        """``waiting``: for a worker, ``running``, ``stopped`` or ``finished``."""
        if self.run.finished_at is not None:
            return "stopped" if self.run.stopped_by else "finished"
        return "running" if self.over else "waiting"


@transaction.atomic
def begin(actor: Actor, kind: str, month: date) -> tuple[BillingRun, bool]:
    """Have the role ``background`` do something for every tenant of a month; return the run, and whether it is new.

    While one of the same kind and month runs, it is that one. Raises NotFound without an issuer of invoices.
    """
    _lock()
    _delete_old()
    name = f"{month:%Y-%m}"
    if (running := BillingRun.objects.filter(kind=kind, month=name, finished_at=None).first()) is not None:
        return running, False
    if kind == Kind.MAKE_INVOICES:
        issuers.find()
    run = BillingRun.objects.create(
        kind=kind, month=name, actor_kind=actor.kind, actor=actor.name, request_id=actor.request_id
    )
    chosen = overview.tenants(month.year, month.month)
    BillingRunPart.objects.bulk_create(BillingRunPart(run=run, subject_id=each.id) for each in chosen)
    audit.record(
        actor, "billing_run.begun", ("billing run", run.id), after={"kind": kind, "month": name, "tenants": len(chosen)}
    )
    finish(run)
    run.refresh_from_db()
    return run, True


@transaction.atomic
def begin_matching(actor: Actor, lines: Sequence[UUID]) -> BillingRun:
    """Have the role ``background`` match these lines of bank statements; return the run, which may be one that runs."""
    _lock()
    _delete_old()
    found = BillingRun.objects.select_for_update().filter(kind=Kind.MATCH_PAYMENTS, finished_at=None).first()
    run = found or BillingRun.objects.create(
        kind=Kind.MATCH_PAYMENTS, actor_kind=actor.kind, actor=actor.name, request_id=actor.request_id
    )
    parts = [BillingRunPart(run=run, subject_id=each) for each in lines]
    BillingRunPart.objects.bulk_create(parts, ignore_conflicts=True, batch_size=1000)
    after = {"kind": run.kind, "lines": len(parts)}
    audit.record(actor, "billing_run.begun", ("billing run", run.id), after=after)
    return run


def _delete_old() -> None:
    old = BillingRun.objects.filter(finished_at__lt=timezone.now() - KEPT)
    BillingRunPart.objects.filter(run__in=old).delete()
    old.delete()


@transaction.atomic
def finish(run: BillingRun) -> None:
    """End a run once no part waits. It locks the run's row, so no line is added meanwhile. Idempotent."""
    if BillingRun.objects.select_for_update().filter(id=run.id, finished_at=None).first() is None:
        return
    waiting = BillingRunPart.objects.filter(run=run, outcome=Outcome.WAITING)
    if not waiting.exists():
        BillingRun.objects.filter(id=run.id).update(finished_at=timezone.now())


@transaction.atomic
def stop(actor: Actor, run_id: UUID) -> BillingRun:
    """Do nothing for the parts that still wait; what is done stays. Again it changes nothing. Raises NotFound."""
    run = BillingRun.objects.select_for_update().filter(id=run_id).first()
    if run is None:
        raise NotFound("billing run", str(run_id))
    if run.finished_at is not None:
        return run
    now = timezone.now()
    waiting = BillingRunPart.objects.filter(run=run, outcome=Outcome.WAITING)
    stopped = waiting.update(outcome=Outcome.STOPPED, done_at=now)
    run.stopped_by, run.finished_at = second_person.person(actor), now
    run.save(update_fields=["stopped_by", "finished_at"])
    audit.record(
        actor,
        "billing_run.stopped",
        ("billing run", run.id),
        after={"kind": run.kind, "month": run.month, "stopped": stopped},
    )
    return run


def find(run_id: UUID) -> BillingRun:
    """Return a run. Raises NotFound."""
    found = BillingRun.objects.filter(id=run_id).first()
    if found is None:
        raise NotFound("billing run", str(run_id))
    return found


def latest(kind: str, month: date | None = None) -> BillingRun | None:
    """Return the last run of a kind, for a month or of none."""
    name = "" if month is None else f"{month:%Y-%m}"
    return BillingRun.objects.filter(kind=kind, month=name).order_by("-id").first()


def progress(run: BillingRun, most_problems: int) -> Progress:
    """Return how far a run is, and at most ``most_problems`` parts that were refused or failed."""
    counted = run.parts.order_by().values_list("outcome").annotate(Count("id"))
    failed = {each.subject_id: each for each in run.parts.filter(outcome__in=(Outcome.REFUSED, Outcome.FAILED))}
    rows: QuerySet[Any] = Tenant.objects.filter(id__in=failed).order_by("slug").values_list("id", "slug")
    if run.kind == Kind.MATCH_PAYMENTS:
        rows = BankLine.objects.filter(id__in=failed).order_by("id").values_list("id", "bank_reference")
    return Progress(
        run=run,
        counts=dict.fromkeys(Outcome.values, 0) | dict(counted),
        problems=[
            Problem(subject=name, outcome=failed[subject].outcome, reason=failed[subject].text)
            for subject, name in rows[:most_problems]
        ],
    )


def _lock() -> None:
    """Let one run begin at a time, until the current transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
