"""Verify the ledger from one snapshot of the database: each posting, what it was made of, and what is derived from it.

Triggers keep the ledger append-only and balanced. This finds what somebody changed in spite of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from reconciliation import closed_months
from reconciliation.models import BookGap
from tenants.ids import first_id_at

#: Differences that one check reports.
MOST_DIFFERENCES = 100
#: Before all requests.
EVER = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs: in which tenant, about what, what it should be and what it is, in pico-units or as a number."""

    tenant_id: UUID
    subject: str
    expected: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: what should hold, and the first MOST_DIFFERENCES places where it does not."""

    name: str
    about: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The balance of all accounts of one kind, debit positive."""

    kind: str
    currency: str
    amount_pico: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All checks, how many postings there are, and the balances that sum to zero in each currency."""

    postings: int
    checks: tuple[Check, ...]
    balances: tuple[Balance, ...]

    @property
    def is_right(self) -> bool:
        """Return whether nothing differs."""
        return not any(check.differences for check in self.checks)


_UNBALANCED = """
    SELECT posting.tenant_id, posting.source, 0, coalesce(sum(entry.amount_pico), 1)
    FROM billing_ledgertransaction AS posting
    LEFT JOIN billing_ledgerentry AS entry ON entry.transaction_id = posting.id
    GROUP BY posting.id HAVING coalesce(sum(entry.amount_pico), 1) <> 0
"""
_FOREIGN = """
    SELECT posting.tenant_id, posting.source, 0, count(*)
    FROM billing_ledgertransaction AS posting
    JOIN billing_ledgerentry AS entry ON entry.transaction_id = posting.id
    JOIN billing_ledgeraccount AS account ON account.id = entry.account_id
    WHERE account.tenant_id <> posting.tenant_id GROUP BY posting.id
"""
_CURRENCIES = """
    SELECT tenant_id, string_agg(DISTINCT currency, ', '), 1, count(DISTINCT currency)
    FROM (
        SELECT tenant_id, currency FROM billing_ledgeraccount
        UNION SELECT own.tenant_id, tenant.currency
        FROM billing_ledgeraccount AS own JOIN tenants_tenant AS tenant ON tenant.id = own.tenant_id
    ) AS used GROUP BY tenant_id HAVING count(DISTINCT currency) > 1
"""
_POSTED_TWICE = """
    SELECT tenant_id, request::text, 1, count(*) FROM (
        SELECT tenant_id, unnest(usage_ids) AS request FROM billing_ledgertransaction
        WHERE kind = 'usage' AND source >= %(source)s
    ) AS posted WHERE request >= %(first)s GROUP BY tenant_id, request HAVING count(*) > 1
"""
_NOT_POSTED = """
    SELECT used.tenant_id, used.id::text, used.amount_pico, 0 FROM billing_usagerecord AS used
    LEFT JOIN (
        SELECT unnest(usage_ids) AS id FROM billing_ledgertransaction
        WHERE kind = 'usage' AND source >= %(source)s
    ) AS posted ON posted.id = used.id
    WHERE used.id >= %(first)s AND used.purpose = 'tenant' AND used.amount_pico > 0 AND posted.id IS NULL
"""
#: A posting whose requests were retired, in whole or in part, is left out.
_POSTED_OTHERWISE = """
    SELECT posting.tenant_id, posting.source, posting.used, coalesce(sum(entry.amount_pico), 0) FROM (
        SELECT each.id, each.tenant_id, each.source, sum(used.amount_pico) AS used
        FROM billing_ledgertransaction AS each, unnest(each.usage_ids) AS request
        LEFT JOIN billing_usagerecord AS used ON used.id = request AND used.id >= %(first)s
        WHERE each.kind = 'usage' AND each.source >= %(source)s
        GROUP BY each.id HAVING count(used.id) = cardinality(each.usage_ids)
    ) AS posting
    LEFT JOIN (
        billing_ledgerentry AS entry
        JOIN billing_ledgeraccount AS account ON account.id = entry.account_id AND account.kind = 'receivable'
    ) ON entry.transaction_id = posting.id
    GROUP BY posting.id, posting.tenant_id, posting.source, posting.used
    HAVING coalesce(sum(entry.amount_pico), 0) <> posting.used
"""
_CREDIT_POSTED_OTHERWISE = """
    SELECT credit.tenant_id, credit.kind || ' ' || credit.id, credit.amount_pico, -coalesce(sum(entry.amount_pico), 0)
    FROM billing_creditentry AS credit
    LEFT JOIN (
        billing_ledgerentry AS entry JOIN billing_ledgeraccount AS account ON account.id = entry.account_id
    ) ON entry.transaction_id = credit.transaction_id
        AND account.kind = CASE WHEN credit.promotion_id IS NULL THEN 'prepaid' ELSE 'promotion' END
    GROUP BY credit.id HAVING credit.amount_pico <> -coalesce(sum(entry.amount_pico), 0)
"""
_UNUSED = """
    SELECT tenant_id, kind, coalesce(sum(credit), 0), coalesce(sum(ledger), 0) FROM (
        SELECT tenant_id, CASE WHEN promotion_id IS NULL THEN 'prepaid' ELSE 'promotion' END AS kind,
            amount_pico AS credit, 0 AS ledger
        FROM billing_creditentry
        UNION ALL
        SELECT account.tenant_id, account.kind, 0, -entry.amount_pico FROM billing_ledgerentry AS entry
        JOIN billing_ledgeraccount AS account ON account.id = entry.account_id
        WHERE account.kind IN ('prepaid', 'promotion')
    ) AS both_books GROUP BY tenant_id, kind HAVING sum(credit) <> sum(ledger)
"""
_BELOW_ZERO = """
    SELECT tenant_id, coalesce('promotion ' || promotion_id, 'prepaid'), 0, sum(amount_pico)
    FROM billing_creditentry GROUP BY tenant_id, promotion_id HAVING sum(amount_pico) < 0
"""
_REOPENED = """
    SELECT credit.tenant_id, closing.year || '-' || lpad(closing.month::text, 2, '0'), 0, sum(credit.amount_pico)
    FROM billing_creditentry AS credit JOIN billing_billingmonth AS closing ON closing.id = credit.closing_id
    WHERE closing.reopened_at IS NOT NULL GROUP BY closing.id, credit.tenant_id HAVING sum(credit.amount_pico) <> 0
"""
_CHECKS = (
    ("balanced", "Each posting has entries, and they sum to zero.", _UNBALANCED),
    ("own-accounts", "The entries of a posting are in accounts of its tenant.", _FOREIGN),
    ("one-currency", "The ledger of a tenant has one currency, that of its account.", _CURRENCIES),
    ("posted-once", "No request was posted twice.", _POSTED_TWICE),
    ("all-posted", "Each request that was charged was posted.", _NOT_POSTED),
    ("as-charged", "Each posting of usage has the sum that its requests were charged.", _POSTED_OTHERWISE),
    ("credit-posted", "Each entry of credit has the amount of its posting.", _CREDIT_POSTED_OTHERWISE),
    ("unused-credit", "What is prepaid (deferred revenue) and promotions are what is unused.", _UNUSED),
    ("not-below-zero", "No part of a tenant's credit is below zero.", _BELOW_ZERO),
    ("returned", "Reopening a month gave back the credit that had paid for it.", _REOPENED),
)
CHECKS: tuple[str, ...] = tuple(name for name, _, _ in _CHECKS)
_BALANCES = """
    SELECT account.kind, account.currency, sum(entry.amount_pico) FROM billing_ledgerentry AS entry
    JOIN billing_ledgeraccount AS account ON account.id = entry.account_id
    GROUP BY account.kind, account.currency ORDER BY account.currency, account.kind
"""


def verify(since: datetime | None = None) -> Verification:
    """Verify the whole ledger; requests, and months, only from ``since`` on. Changes nothing."""
    alone = not connection.in_atomic_block
    with transaction.atomic(), connection.cursor() as cursor:
        if alone:
            # What is posted meanwhile is in all answers or in none.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        checks = _checks(cursor, since or EVER)
        checks.append(
            Check(
                name="closed-months",
                about="Each closed month equals its lines and its postings.",
                differences=tuple(_months(since or EVER)[:MOST_DIFFERENCES]),
            )
        )
        cursor.execute(_BALANCES)
        balances = tuple(
            Balance(kind=kind, currency=currency, amount_pico=int(pico)) for kind, currency, pico in cursor.fetchall()
        )
        cursor.execute("SELECT count(*) FROM billing_ledgertransaction")
        [postings] = cursor.fetchone()
    return Verification(postings=postings, checks=tuple(checks), balances=balances)


def compare(now: datetime, since: datetime) -> None:
    """Verify what the hourly comparison can afford: requests from ``since`` on; replace the gaps that it found before.

    Closed months have a comparison of their own.
    """
    alone = not connection.in_atomic_block
    with transaction.atomic(), connection.cursor() as cursor:
        if alone:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        checks = _checks(cursor, since)
    first = {(each.tenant_id, check.name): each for check in checks for each in reversed(check.differences)}
    with transaction.atomic():
        BookGap.objects.filter(book__in=CHECKS).delete()
        BookGap.objects.bulk_create(
            BookGap(
                tenant_id=tenant_id,
                month=f"{now:%Y-%m}",
                book=name,
                usage_pico=each.expected,
                book_pico=each.found,
            )
            for (tenant_id, name), each in first.items()
        )


def _checks(cursor: Any, since: datetime) -> list[Check]:
    """Run all checks of single postings. A posting has the requests of one quarter of an hour, so of one month."""
    month = since.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    values = {"first": first_id_at(since), "source": f"usage:{first_id_at(month)}", "most": MOST_DIFFERENCES}
    return [
        Check(name=name, about=about, differences=_differences(cursor, sql, values)) for name, about, sql in _CHECKS
    ]


def _differences(cursor: Any, sql: str, values: dict[str, Any]) -> tuple[Difference, ...]:
    cursor.execute(f"{sql} ORDER BY 1, 2 LIMIT %(most)s", values)
    return tuple(
        Difference(tenant_id=tenant_id, subject=subject, expected=int(expected), found=int(found))
        for tenant_id, subject, expected, found in cursor.fetchall()
    )


def _months(since: datetime) -> list[Difference]:
    """Return each closed month whose lines or postings differ from its amount."""
    return [
        Difference(tenant_id=each.tenant_id, subject=each.month, expected=each.amount_pico, found=pico)
        for each in closed_months.sums(since)
        for pico in [next((sum_ for sum_ in (each.ledger_pico, each.lines_pico) if sum_ != each.amount_pico), None)]
        if pico is not None
    ]
