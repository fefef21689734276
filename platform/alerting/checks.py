"""What is wrong now. Each check reads one thing and yields a problem for each that is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from django.conf import settings
from django.db.models import Q, Sum
from django.db.models.functions import Now
from django.utils import timezone

from alerting import kinds
from billing.drain import lag
from billing.dunning import cases
from billing.models import StripeConnection, UsageRollup, WalOffset
from billing.stripe import comparison
from billing.wal import disk_usage
from reconciliation.models import Comparison
from reserved_capacity.models import ReservedHour
from tenants.identity import operator_sign_in
from tenants.ids import first_id_at
from tenants.models import AuditEntry
from workers.models import Node, NodeCertificate, Replica, SlotWait


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong with ``subject``, in one sentence. ``host``: the machine, if only it sees this."""

    subject: str
    summary: str
    host: str = ""


def replicas_failing() -> Iterator[Problem]:
    """Yield deployments with a replica that was given up and is still wanted."""
    rows = Replica.objects.filter(state=Replica.State.FAILED, deployment__archived_at=None)
    rows = rows.exclude(desired_state=Replica.Desired.STOPPED)
    for name, error in rows.order_by("deployment__name", "-id").values_list("deployment__name", "last_error"):
        reason = f": {error[:200]}" if error else ""
        yield Problem(subject=f"deployment {name}", summary=f"A replica of {name} was given up{reason}")


def pools_full() -> Iterator[Problem]:
    """Yield pools for whose slots a deployment waits."""
    rows = SlotWait.objects.filter(ended_at=None, deployment__archived_at=None).order_by("pool__name", "began_at")
    for pool, deployment, began_at in rows.values_list("pool__name", "deployment__name", "began_at"):
        since = f"{began_at:%Y-%m-%d %H:%M} UTC"
        yield Problem(
            subject=f"pool {pool}", summary=f"{deployment} has waited for slots of pool {pool} since {since}."
        )


def nodes_lost() -> Iterator[Problem]:
    """Yield nodes that should serve and whose agent is silent."""
    silent = Q(lease_expires_at__lt=Now() - timedelta(seconds=kinds.NODE_LOST_SECONDS))
    for name in Node.objects.filter(silent, removed_at=None, cordoned=False).values_list("name", flat=True):
        yield Problem(subject=f"node {name}", summary=f"The agent of node {name} is silent.")


def drains_behind() -> Iterator[Problem]:
    """Yield this machine if its usage waits, and others whose drain says that it has not caught up."""
    here = settings.NODE_NAME
    waiting = lag.backlog().records_lag_seconds
    if waiting > kinds.DRAIN_BEHIND_SECONDS:
        yield replace(_behind(here, waiting), host=here)
    late = Now() - timedelta(seconds=kinds.DRAIN_BEHIND_SECONDS)
    # A drain that is up writes every few seconds how far it is; one that is not is its node's alert.
    rows = WalOffset.objects.filter(caught_up_at__lt=late, updated_at__gte=late).exclude(node=here)
    now = timezone.now()
    for node, caught_up_at in rows.values_list("node", "caught_up_at"):
        if caught_up_at is not None:
            yield _behind(node, (now - caught_up_at).total_seconds())


def reconciliation_gaps() -> Iterator[Problem]:
    """Yield the gaps of the last comparison."""
    last = Comparison.objects.exclude(finished_at=None).order_by("-id").first()
    if last is not None and last.boot_gaps:
        yield Problem(subject="engines", summary=f"{last.boot_gaps} engine processes do not agree with usage.")
    if last is not None and last.book_gaps:
        yield Problem(subject="books", summary=f"{last.book_gaps} sums of the books differ from usage.")
    for connection in StripeConnection.objects.select_related("issuer").order_by("id"):
        compared = comparison.latest(connection, finished=True)
        if compared is not None and (count := compared.findings.count()):
            name = connection.issuer.name
            yield Problem(
                subject=f"stripe {name}", summary=f"{count} things differ between Stripe's account and {name}."
            )


def payments_overdue() -> Iterator[Problem]:
    """Yield tenants whose requests are refused because they have not paid."""
    for tenant in cases.suspended():
        since = f"{tenant.payment_overdue_since:%Y-%m-%d %H:%M} UTC"
        text = f"Requests of {tenant.slug} are refused since {since}: invoices are not paid."
        yield Problem(subject=f"tenant {tenant.slug}", summary=text)


def dunning_late() -> Iterator[Problem]:
    """Yield dunning if it has not run through for long, or if its last run failed for some invoices or tenants."""
    last, late = cases.last_run(), timezone.now() - kinds.DUNNING_LATE
    if last is None:
        yield from (Problem(subject="dunning", summary=text) for text in cases.why_missing(late))
    elif last.finished_at is not None and last.finished_at < late:
        yield Problem(subject="dunning", summary=f"Dunning last ran through at {last.finished_at:%Y-%m-%d %H:%M} UTC.")
    elif last.failures:
        yield Problem(subject="dunning", summary=f"Dunning could not look at {last.failures} invoices or tenants.")


def disks() -> Iterator[Problem]:
    """Yield this machine if the disk of its data directory or its usage log fills."""
    here = settings.NODE_NAME
    usage = shutil.disk_usage(settings.DATA_DIR)
    if usage.free < min(usage.total * kinds.FREE_SHARE, kinds.FREE_BYTES):
        free = f"{usage.free / (1 << 30):.1f} GiB of {usage.total / (1 << 30):.1f} GiB"
        yield Problem(subject=f"disk of {here}", summary=f"Only {free} are free on {here}.", host=here)
    log = disk_usage.DiskUsage(bytes=disk_usage.bytes_in(settings.WAL_DIR), max_bytes=settings.WAL_MAX_BYTES)
    if log.is_alarming:
        yield Problem(subject=f"usage log of {here}", summary=f"The usage log of {here}: {log.describe()}.", host=here)


def certificates() -> Iterator[Problem]:
    """Yield nodes whose agent lives and whose certificate expires soon."""
    rows = NodeCertificate.objects.filter(node__lease_expires_at__gt=Now(), node__removed_at=None)
    soon = rows.filter(expires_at__lt=Now() + timedelta(seconds=kinds.CERTIFICATE_SECONDS))
    for name, expires_at in soon.values_list("node__name", "expires_at"):
        until = f"{expires_at:%Y-%m-%d %H:%M} UTC"
        yield Problem(subject=f"node {name}", summary=f"The certificate of node {name} is valid until {until}.")


def reservations_missing() -> Iterator[Problem]:
    """Yield reservations whose slots were not available in the last hour that was measured."""
    rows = ReservedHour.objects.filter(starts_at__gt=timezone.now() - kinds.MEASURED)
    newest = rows.order_by("reservation_id", "-starts_at").distinct("reservation_id")
    for hour in newest.select_related("reservation__tenant"):
        if hour.missing_seconds >= kinds.MISSING_SECONDS:
            of, name = hour.reservation, hour.reservation.deployment
            share = f"{hour.missing_seconds / 60:.0f} of {60 * hour.slots} slot minutes"
            text = f"{of.slots} reserved slots of {name} were not available for {share} from {hour.starts_at:%H:%M} UTC"
            yield Problem(subject=f"reservation of {of.tenant.slug}, {name}"[:300], summary=f"{text} on.")


def error_rates() -> Iterator[Problem]:
    """Yield models of whose newest requests the platform failed too many."""
    since = timezone.now() - 2 * kinds.ERROR_WINDOW
    rows = UsageRollup.objects.filter(starts_at__gt=since).values("model_name")
    for row in rows.annotate(total=Sum("requests"), failed=Sum("errors")).order_by("model_name"):
        failed, total = row["failed"] or 0, row["total"] or 0
        if failed >= kinds.FEWEST_ERRORS and failed > kinds.ERROR_SHARE * total:
            text = f"{failed} of the newest {total} requests to {row['model_name']} failed."
            yield Problem(subject=f"model {row['model_name']}"[:300], summary=text[:500])


def break_glass_uses() -> Iterator[Problem]:
    """Yield the newest sign-ins of the break-glass operator, each apart."""
    since = first_id_at(timezone.now() - kinds.BREAK_GLASS)
    for entry in AuditEntry.objects.filter(id__gte=since, action=operator_sign_in.USED).order_by("id"):
        when = f"{entry.created_at:%Y-%m-%d %H:%M:%S.%f} UTC"
        address = (entry.after or {}).get("address") or "an unknown address"
        yield Problem(subject=f"{entry.actor} at {when}", summary=f"{entry.actor} signed in from {address} at {when}.")


def _behind(node: str, seconds: float) -> Problem:
    return Problem(subject=f"drain of {node}", summary=f"Usage of {node} waits {seconds:.0f} s for the database.")


#: By the name of the kind.
CHECKS: Mapping[str, Callable[[], Iterator[Problem]]] = {
    "replica-failing": replicas_failing,
    "pool-full": pools_full,
    "node-lost": nodes_lost,
    "drain-behind": drains_behind,
    "reconciliation-gap": reconciliation_gaps,
    "payment-overdue": payments_overdue,
    "dunning": dunning_late,
    "reservation-missing": reservations_missing,
    "disk": disks,
    "certificate": certificates,
    "error-rate": error_rates,
    "break-glass-used": break_glass_uses,
}
