"""What can go wrong in billing.

BillingError
├── WalError                  usage cannot be recorded, so nothing may be served
│   ├── WalFull               the disk is full; appending works again once there is space
│   ├── WalOverCap            the log has reached its cap; a START works again once the drain has caught up
│   ├── WalBroken             the disk refused a write or a sync; this writer stays unusable
│   ├── WalClosed             appended after close()
│   └── RecordTooLarge        one record is larger than a frame
├── WalDirectoryBusy          another drain owns the directory
├── MixedCurrencies           a month charged in several currencies has no single total
├── NotClosed                 a tenant's month cannot be closed yet
├── NotReopened               a tenant's month cannot be reopened
├── GlCodeMissing             lines of a journal have no code of the general ledger
├── UsageDeleted              a month's requests are gone, so what engines cost cannot be divided
├── RequestsDeleted           a month's requests are gone, so it cannot be split by project
├── BadCredit                 a change of credit that is not valid
├── CreditRefused             a change of credit that is not allowed
├── BadIssuer                 a value of an issuer that is not valid
├── InvoiceRefused            a step of an invoice that is not allowed
├── BadBankFile              a bank statement that cannot be read; nothing of it is imported
├── PaymentRefused            a line of a bank statement that cannot be assigned or dismissed
├── StripeRefused             something about Stripe that is not allowed, or that Stripe refuses
├── StripeUnavailable         Stripe did not answer, or asks to wait; the same works again later
├── BadWebhook                a webhook that Stripe did not sign, or not now
├── BadPriceFile              a CSV file of prices that is not valid, or a price in it that is not allowed
├── BadTerms                  a plan's document that is not valid
├── TooManyRequests           a report would read too many single requests
├── PlanRefused               a change of plans that is not allowed
└── PriceRefused              a price change that is not allowed
    ├── PriceOutOfRange       negative or above the highest allowed price
    ├── PriceInThePast        effective before now
    ├── PriceJump             a change of more than tenfold, not confirmed
    └── PriceExists           the model already has a price from that moment
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

#: How many of the lines without a code an error names.
SHOWN_CODES = 5


class BillingError(Exception):
    """Base of this room."""


class WalError(BillingError):
    """A usage record could not be written. The file keeps no part of the refused append."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class WalFull(WalError):
    """No disk space or quota is left. The next append tries again."""


class WalOverCap(WalError):
    """The directory has reached its cap. Records of requests that have begun are still written."""


class WalBroken(WalError):
    """An I/O error. After a failed sync the kernel may have dropped the pages, so the writer never recovers."""


class WalClosed(WalError):
    """The writer was closed."""


class RecordTooLarge(WalError):
    """The encoded record is larger than the largest frame."""


class WalDirectoryBusy(BillingError):
    """Another drain process holds the directory's lock."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"another drain owns {directory}")
        self.directory = directory


class MixedCurrencies(BillingError):
    """A tenant's month was charged in several currencies. Carries them."""

    def __init__(self, currencies: frozenset[str]) -> None:
        super().__init__(f"charged in {', '.join(sorted(currencies))}")
        self.currencies = currencies


class UsageDeleted(BillingError):
    """A month's requests are gone, so what engines cost cannot be divided among deployments and tenants."""

    def __init__(self, month: str) -> None:
        super().__init__(f"the requests of {month} were deleted, so who used which engine is not known")
        self.month = month


class GlCodeMissing(BillingError):
    """Lines of these classes and models have no code. ``credit`` is the platform's account."""

    def __init__(self, missing: Sequence[tuple[str, str]]) -> None:
        names = [f"{line_class} of {model}" if model else line_class for line_class, model in missing]
        more = f" and {len(names) - SHOWN_CODES} more" if len(names) > SHOWN_CODES else ""
        super().__init__(f"no GL code is set for {', '.join(names[:SHOWN_CODES])}{more}")
        self.missing = tuple(missing)


class RequestsDeleted(BillingError):
    """The requests of a month, given as YYYY-MM, were deleted; the tenant's final statement remains."""

    def __init__(self, month: str) -> None:
        super().__init__(f"the requests of {month} were deleted")
        self.month = month


class NotClosed(BillingError):
    """A tenant's month cannot be closed. Carries the tenant's slug, the month as YYYY-MM, the reason, what to do."""

    def __init__(self, tenant: str, month: str, reason: str, remedy: str) -> None:
        super().__init__(f"{month} of {tenant} stays open: {reason}. {remedy}".rstrip())
        self.tenant = tenant
        self.month = month
        self.reason = reason
        self.remedy = remedy


class NotReopened(BillingError):
    """A tenant's month stays as it is. Carries the tenant's slug, the month as YYYY-MM, and the reason."""

    def __init__(self, tenant: str, month: str, reason: str) -> None:
        super().__init__(f"{month} of {tenant} is not reopened: {reason}")
        self.tenant = tenant
        self.month = month
        self.reason = reason


class BadCredit(BillingError):
    """A change of a tenant's credit is not valid. Carries the field and what to use."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class CreditRefused(BillingError):
    """A tenant's credit stays as it is. Carries the tenant's slug, the reason, and what to do."""

    def __init__(self, tenant: str, reason: str, remedy: str) -> None:
        super().__init__(f"The credit of {tenant} is unchanged: {reason}. {remedy}".rstrip())
        self.tenant = tenant
        self.reason = reason
        self.remedy = remedy


class BadIssuer(BillingError):
    """An issuer stays as it is. Carries the field, the problem and what is allowed."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class InvoiceRefused(BillingError):
    """An invoice, or a month without one, stays as it is. Carries what it is about, the reason, and what to do."""

    def __init__(self, subject: str, reason: str, remedy: str = "") -> None:
        super().__init__(f"{subject}: {reason}. {remedy}".rstrip())
        self.subject = subject
        self.reason = reason
        self.remedy = remedy


class BadDunning(BillingError):
    """Dunning stays as it is. Carries the field, the problem and what is allowed."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class BadBankFile(BillingError):
    """A bank statement is not imported. Carries where the file is wrong, empty if everywhere, and the problem."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}" if place else problem)
        self.place = place
        self.problem = problem


class PaymentRefused(BillingError):
    """A line of a bank statement stays as it is. Carries the line's reference, the reason, and what to do."""

    def __init__(self, reference: str, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reference}: {reason}. {remedy}".rstrip())
        self.reference = reference
        self.reason = reason
        self.remedy = remedy


class StripeRefused(BillingError):
    """Nothing more is done at Stripe. Carries what it is about, the reason, and what to do.

    ``is_missing``: Stripe does not have the object.
    """

    def __init__(self, subject: str, reason: str, remedy: str = "", *, is_missing: bool = False) -> None:
        super().__init__(f"{subject}: {reason.rstrip('.')}. {remedy}".rstrip())
        self.is_missing = is_missing
        self.subject = subject
        self.reason = reason
        self.remedy = remedy


class StripeUnavailable(BillingError):
    """Stripe did not answer, or asks to wait. ``answered``: with a 5xx, which it repeats for the same key."""

    def __init__(self, reason: str, *, answered: bool = False) -> None:
        super().__init__(f"Stripe: {reason}")
        self.reason = reason
        self.answered = answered


class BadWebhook(BillingError):
    """A webhook is not stored. Carries the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BadPriceFile(BillingError):
    """A file of prices sets none. Carries the line, from 1, or None; the column, empty if it is none; the problem."""

    def __init__(self, line: int | None, column: str, problem: str, *, is_jump: bool = False) -> None:
        place = ", ".join(filter(None, (f"line {line}" if line is not None else "", column)))
        super().__init__(f"{place}: {problem}" if place else problem)
        self.line = line
        self.column = column
        #: Whether a price changes more than tenfold, which can be confirmed.
        self.is_jump = is_jump
        self.problem = problem


class BadTerms(BillingError):
    """A document of terms is not valid. ``field`` as in ``discounts[0].percent``, empty if it is none."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem


class PlanRefused(BillingError):
    """A plan stays as it is. Carries its name, the reason, and what to do."""

    def __init__(self, plan: str, reason: str, remedy: str) -> None:
        super().__init__(f"{plan}: {reason}. {remedy}".rstrip())
        self.plan = plan
        self.reason = reason
        self.remedy = remedy


class PriceRefused(BillingError):
    """Base of refused price changes. Carries the model's name."""

    def __init__(self, model_name: str, problem: str) -> None:
        super().__init__(f"{model_name}: {problem}")
        self.model_name = model_name


class PriceOutOfRange(PriceRefused):
    """Carries the token class, its price and the highest allowed price, in pico-dollars, or a multiplier likewise."""

    def __init__(self, model_name: str, token_class: str, pico: int, highest_pico: int, *, priority: str = "") -> None:
        of = f"{token_class} of {pico}{'' if token_class.endswith('_bp') else ' pico'}"
        at = f" at {priority} priority" if priority else ""
        super().__init__(model_name, f"{of}{at}; allowed: 0 to {highest_pico}")
        self.token_class = token_class
        self.pico = pico
        self.highest_pico = highest_pico


class PriceInThePast(PriceRefused):
    """Carries ``effective_from`` and ``now``. Requests already served are never repriced."""

    def __init__(self, model_name: str, effective_from: datetime, now: datetime) -> None:
        super().__init__(model_name, f"effective from {effective_from.isoformat()}, before {now.isoformat()}")
        self.effective_from = effective_from
        self.now = now


class PriceJump(PriceRefused):
    """Carries the token class and both prices, in pico-dollars per token (per request for a prediction hit)."""

    def __init__(self, model_name: str, token_class: str, before_pico: int, after_pico: int) -> None:
        unit = "" if token_class.endswith("_bp") else " pico"
        super().__init__(model_name, f"{token_class} from {before_pico} to {after_pico}{unit}, more than tenfold")
        self.token_class = token_class
        self.before_pico = before_pico
        self.after_pico = after_pico


class PriceExists(PriceRefused):
    """Carries ``effective_from``."""

    def __init__(self, model_name: str, effective_from: datetime) -> None:
        super().__init__(model_name, f"already has a price from {effective_from.isoformat()}")
        self.effective_from = effective_from


class TooManyRequests(BillingError):
    """A report would read more single requests than it may."""

    def __init__(self, requests: int, most: int) -> None:
        super().__init__(requests, most)
        self.requests = requests
        self.most = most

    @property
    def allowed(self) -> str:
        """Return what is allowed, after "Use"."""
        return f"a shorter period, with at most {self.most:,} requests; this one has {self.requests:,}"

    def __str__(self) -> str:
        return f"Use {self.allowed}."
