"""Close a tenant's month: freeze its lines, taken from the ledger's postings.

A month closes once it is over, a grace for late records has passed, every drain has stored what was written during the
month, every request has a price, earlier months with charges are closed, and the lines sum to what the ledger has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from billing import second_person
from billing.accounts import application, overpaid, promotions
from billing.errors import MixedCurrencies, NotClosed
from billing.ledger import ledger
from billing.ledger.usage_rows import moment_of
from billing.models import BillingMonth, MonthLine, MonthProjectLine, WalOffset
from billing.months import terms_posting
from billing.reports import statements
from billing.reports.statements import Line, Month, Statement
from reserved_capacity import measured
from tenants import audit, cost_centres
from tenants.audit import Actor
from tenants.ids import TenantId, first_id_at
from tenants.models import Tenant

#: First half of the advisory lock of a tenant's months: "mon" in ASCII. The trigger of late postings takes it too.
LOCK = 0x6D6F6E


@transaction.atomic
def close(
    actor: Actor, month: Month, *, without_nodes: Collection[str] = (), now: datetime | None = None
) -> tuple[BillingMonth, bool]:
    """Close a month; return its closing, and whether it is new: a closed month stays as it is.

    The tenant's credit pays what is due, without what was paid for a void invoice of the month. ``without_nodes``:
    hosts that are lost for good, whose drain is not waited for. Raises NotClosed.
    """
    lock(TenantId(month.tenant.id))
    if (closed := find(month)) is not None:
        return closed, False
    now = now or timezone.now()
    _require_past(month, now)
    _require_drained(month, without_nodes)
    _require_order(month)
    _require_measured(month)
    found = _statement(month)
    promotions.expire_of(month.tenant.id, now)
    closing = _freeze(actor, month, found)
    terms_posting.post(closing, found.terms)
    posted_pico = sum(ledger.posted(month.billed).values())
    if posted_pico != closing.amount_pico:
        raise _differs(month, int(closing.amount_pico), posted_pico)
    paid_cents = sum(each.cents for each in overpaid.paid_before(closing))
    credit_pico = application.apply(closing, found.amount_cents - paid_cents)
    if paid_cents and not found.lines and not found.terms:
        overpaid.keep(actor, closing, closing.id, paid_cents)  # no invoice will count it
    audit.record(
        actor,
        "month.closed",
        ("month", month.name),
        tenant=month.tenant,
        after={
            "revision": closing.revision,
            "amount_pico": int(closing.amount_pico),
            "currency": closing.currency,
            "lines": len(found.lines),
            "terms_pico": found.amount_pico - found.usage_pico,
            "credit_applied_pico": credit_pico,
            "without_nodes": sorted(without_nodes),
        },
    )
    return closing, True


def find(month: Month) -> BillingMonth | None:
    """Return the closing of a month that is closed; None for an open one."""
    return BillingMonth.objects.filter(
        tenant_id=month.tenant.id, year=month.year, month=month.month, reopened_at=None
    ).first()


def grace_ends(month: Month) -> datetime:
    """Return the moment from which on the month may be closed."""
    return month.end + timedelta(hours=settings.MONTH_GRACE_HOURS)


def lock(tenant_id: TenantId) -> None:
    """Prevent other changes to the tenant's months, and late postings, until the current transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [LOCK, str(tenant_id)])


def _require_past(month: Month, now: datetime) -> None:
    closes_at = grace_ends(month)
    if now >= closes_at:
        return
    moment = f"{closes_at:%B} {closes_at.day}, {closes_at:%Y, %H:%M %Z}"
    grace = f"Records may arrive up to {settings.MONTH_GRACE_HOURS} hours late." if settings.MONTH_GRACE_HOURS else ""
    raise _refused(month, f"it may be closed from {moment} on", grace)


def _require_drained(month: Month, without_nodes: Collection[str]) -> None:
    """Raise NotClosed for a drain that has not stored all that was written during the month."""
    waiting = WalOffset.objects.exclude(node__in=list(without_nodes)).filter(
        Q(caught_up_at=None) | Q(caught_up_at__lt=month.end)
    )
    if nodes := sorted(set(waiting.values_list("node", flat=True))):
        raise _refused(
            month,
            f"the drain of {', '.join(nodes)} has not stored all records from before {month.end.isoformat()}",
            "Start it and try again in a minute. Close without the host if it is lost for good.",
        )


def _require_order(month: Month) -> None:
    first = first_id_at(month.start)
    until = ledger.closed_until(TenantId(month.tenant.id)) or UUID(int=0)
    earlier = ledger.first_own_between(TenantId(month.tenant.id), until, first) if until < first else None
    if earlier is not None:
        at = moment_of(earlier).astimezone(month.start.tzinfo)
        raise _refused(month, f"{at:%Y-%m} has charges and is open", f"Close {at:%Y-%m} first.")


def _require_measured(month: Month) -> None:
    """Raise NotClosed for an hour of reserved capacity whose availability is not known."""
    missing = measured.first_missing(month.tenant.id, month.start, month.end)
    if missing is not None:
        raise _refused(
            month,
            f"how far its reserved capacity was available from {missing.isoformat()} on is not measured yet",
            "The control worker does it every ten minutes; see that it runs.",
        )


def _statement(month: Month) -> Statement:
    """Return the statement to freeze. Raises NotClosed."""
    try:
        found = statements.kept_statement(month) or statements.computed(month, only_posted=True, by_project=True)
    except MixedCurrencies as error:
        raise _refused(month, f"its requests were {error}, which cannot be added", "") from error
    if found.unrated_requests:
        raise _refused(
            month, f"{found.unrated_requests} of its requests have no price", "Set the price of their model first."
        )
    if not found.equals_ledger:
        raise _differs(month, found.usage_pico, found.ledger_pico or 0)
    return found


def _differs(month: Month, pico: int, posted_pico: int) -> NotClosed:
    return _refused(
        month,
        f"its lines sum to {pico} pico-units, the ledger has {posted_pico}",
        "Nothing was closed. Compare its requests with the ledger's postings.",
    )


def _freeze(actor: Actor, month: Month, found: Statement) -> BillingMonth:
    of_month = {"tenant_id": month.tenant.id, "year": month.year, "month": month.month}
    closing = BillingMonth.objects.create(
        **of_month,
        revision=BillingMonth.objects.filter(**of_month).count() + 1,
        timezone=found.timezone,
        currency=found.currency,
        starts_at=found.start,
        ends_at=found.end,
        first_id=month.billed.first,
        behind_id=month.billed.behind,
        grace_hours=settings.MONTH_GRACE_HOURS,
        amount_pico=found.amount_pico,
        document=msgspec.to_builtins(replace(found, lines=(), terms=(), project_lines=())),
        cost_centre=Tenant.objects.values_list("cost_centre", flat=True).get(id=month.tenant.id),
        closed_by=second_person.person(actor),
    )
    MonthLine.objects.bulk_create(_lines(closing, found))
    MonthProjectLine.objects.bulk_create(_project_lines(closing, found))
    closing.refresh_from_db()
    return closing


def _lines(closing: BillingMonth, found: Statement) -> Iterator[MonthLine]:
    for position, line in enumerate(found.lines):
        yield MonthLine(closing=closing, tenant_id=closing.tenant_id, position=position, **_columns(line))


def _project_lines(closing: BillingMonth, found: Statement) -> Iterator[MonthProjectLine]:
    centres = cost_centres.of_projects(part.project_id for part in found.project_lines)
    for position, part in enumerate(found.project_lines):
        yield MonthProjectLine(
            closing=closing,
            tenant_id=closing.tenant_id,
            project_id=part.project_id,
            position=position,
            cost_centre=centres.get(part.project_id, closing.cost_centre),
            **_columns(part.line),
        )


def _columns(line: Line) -> dict[str, Any]:
    return {
        "adjusts_month": line.adjusts_month or "",
        "model_name": line.model_name,
        "token_class": line.token_class,
        "quantity": line.quantity,
        "unit_price_pico": line.unit_price_pico,
        "amount_pico": line.amount_pico,
        "priority": line.priority,
    }


def _refused(month: Month, reason: str, remedy: str) -> NotClosed:
    return NotClosed(month.tenant.slug, month.name, reason, remedy)
