"""A tenant's billing account: whom its invoices address, its tax, its terms of payment and its currency.

A tenant without details has the defaults. Legal name, address, tax id and e-mails are personal data where the customer
is a person: they have a table of their own, which erasing the tenant empties, and the audit log has no values of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from billing.accounts import codes, mail_addresses
from billing.models import BillingAccount, LedgerAccount, PriceBook, StripeCustomer, TenantPlan
from billing.models.accounts import (
    LONGEST,
    LONGEST_ADDRESS_LINE,
    LONGEST_TERMS_DAYS,
    MOST_ADDRESS_LINES,
    MOST_EMAILS,
    WHOLE_BASIS_POINTS,
)
from billing.pricing import prices
from reserved_capacity.models import CapacityReservation
from tenants import audit, policy_epoch
from tenants.audit import Actor
from tenants.errors import BadName, NotAllowed
from tenants.ids import PLATFORM_SLUG, new_id
from tenants.models import Budget, Tenant

#: Models that a text names.
NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What an operator sets of an account beside its currency. An empty text or list is unknown."""

    issuer: str = BillingAccount.Issuer.HEARTH.value
    legal_name: str = ""
    address_lines: tuple[str, ...] = ()
    city: str = ""
    postcode: str = ""
    country: str = ""
    tax_id: str = ""
    tax_rate_basis_points: int = 0
    tax_note: str = ""
    payment_terms_days: int = 30
    charge_automatically: bool = False
    billing_emails: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A tenant's account."""

    tenant_id: UUID
    currency: str
    #: Something was posted to the ledger, so the currency cannot be changed any more.
    currency_is_fixed: bool
    #: ``prepaid``: requests may only spend what the credit covers; ``postpaid``: the tenant pays afterwards.
    mode: str
    details: Details
    #: Those of ``billing_emails`` that get a link to confirm them, and nothing else yet.
    unconfirmed_emails: tuple[str, ...] = ()


POSTPAID, PREPAID = "postpaid", "prepaid"
MODES = (POSTPAID, PREPAID)
DETAILS = tuple(field.name for field in fields(Details))
#: What may be personal data, or name a person.
PERSONAL = ("legal_name", "address_lines", "city", "postcode", "tax_id", "tax_note", "billing_emails")


def without_country(tenants: Collection[UUID]) -> set[UUID]:
    """Return those of the tenants that Hearth makes invoices for and that have no country, so it cannot make any."""
    known = BillingAccount.objects.filter(tenant_id__in=tenants).exclude(
        country="", issuer=BillingAccount.Issuer.HEARTH
    )
    return set(tenants).difference(known.values_list("tenant_id", flat=True))


def of(tenant: Tenant) -> Account:
    """Return a tenant's account."""
    row = BillingAccount.objects.filter(tenant_id=tenant.id).first()
    return Account(
        tenant_id=tenant.id,
        currency=tenant.currency,
        mode=POSTPAID if tenant.prepaid_counter_id is None else PREPAID,
        currency_is_fixed=LedgerAccount.objects.filter(tenant_id=tenant.id).exists(),
        details=Details() if row is None else _details(row),
        unconfirmed_emails=mail_addresses.unconfirmed(row),
    )


@transaction.atomic
def change(
    actor: Actor, tenant: Tenant, *, currency: str | None = None, mode: str | None = None, **changes: Any
) -> Account:
    """Set these details, and the currency and the mode unless they are None; return the account. Idempotent.

    Raises BadName for a value that is not valid, NotAllowed for a currency that is fixed.
    """
    if currency is not None:
        prices.exclude_batches()  # one that is being stored charges in the currency until now; before the tenant's lock
    locked = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
    if locked.slug == PLATFORM_SLUG:
        raise NotAllowed("tenant", locked.slug, "the platform's own, which has no bills")
    wanted = {name: _checked(name, value) for name, value in changes.items()}
    before = of(locked)
    old = {name: getattr(before.details, name) for name in wanted}
    changed = {name: value for name, value in wanted.items() if value != old[name]}
    if changed:
        BillingAccount.objects.update_or_create(
            tenant_id=locked.id,
            defaults={name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}
            | {"updated_at": Now()},
        )
    if "billing_emails" in changed:
        mail_addresses.follow(locked, old["billing_emails"])
    if currency is not None and currency != locked.currency:
        _set_currency(before, locked, currency)
        old["currency"], changed["currency"] = before.currency, currency
    if mode is not None and mode != before.mode:
        _set_mode(locked, mode)
        old["mode"], changed["mode"] = before.mode, mode
    if changed:
        audit.record(
            actor,
            "account.changed",
            ("tenant", locked.id),
            tenant=locked,
            before=_without_personal({name: old[name] for name in changed}),
            after=_without_personal(changed) | {"fields": sorted(changed)},
        )
    return of(locked)


def price_notice(tenant: Tenant) -> str:
    """Return what is to be done because of models without a price in the tenant's currency; empty: nothing."""
    current = Tenant.objects.get(id=tenant.id)
    names, currency = prices.missing(current), current.currency
    if not names:
        return ""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (
        f"{', '.join(names[:NAMED])}{more} {'have' if len(names) > 1 else 'has'} no price in {currency}: what they run "
        f"is not charged. Import prices with {tenant.slug} in the column tenant."
    )


def erase(tenant: Tenant) -> int:
    """Empty what may be personal data; return how many accounts had some. Invoices keep what they were issued with."""
    StripeCustomer.objects.filter(tenant_id=tenant.id).update(payment_method_id="", payment_method="")
    empty = {name: [] if isinstance(getattr(Details(), name), tuple) else "" for name in PERSONAL}
    return BillingAccount.objects.filter(tenant_id=tenant.id).exclude(**empty).update(**empty, confirmed_emails=[])


def _details(row: BillingAccount) -> Details:
    found: dict[str, Any] = {name: getattr(row, name) for name in DETAILS}
    return Details(**found | {name: tuple(found[name]) for name in ("address_lines", "billing_emails")})


def _set_currency(before: Account, locked: Tenant, currency: str) -> None:
    if currency not in codes.currencies():
        raise BadName("currency", currency, "the ISO 4217 code of a currency in use, such as EUR")
    if LedgerAccount.objects.filter(tenant_id=locked.id).exclude(currency=currency).exists():
        raise NotAllowed("currency", before.currency, "fixed, because the ledger has postings in it")
    others = {
        "a price book": PriceBook.objects.filter(tenant_id=locked.id),
        "a plan": TenantPlan.objects.filter(tenant_id=locked.id, plan__isnull=False),
        "a reservation": CapacityReservation.objects.filter(tenant_id=locked.id),
        "a budget": Budget.objects.filter(tenant_id=locked.id, archived_at=None),
    }
    if has := [what for what, rows in others.items() if rows.exists()]:
        raise NotAllowed("currency", before.currency, f"that of {' and '.join(has)} of the tenant")
    Tenant.objects.filter(id=locked.id).update(currency=currency)
    locked.currency = currency
    # Prices in another currency are not the tenant's: gateways read which those are.
    policy_epoch.bump(models=True)


def _set_mode(locked: Tenant, mode: str) -> None:
    """Let the tenant pay in advance or afterwards. A new counter has no value, so nothing is admitted before it has."""
    if mode not in MODES:
        raise BadName("mode", mode, f"{POSTPAID} or {PREPAID}")
    locked.prepaid_counter_id = new_id() if mode == PREPAID else None
    locked.save(update_fields=["prepaid_counter_id"])
    policy_epoch.bump(tenants=[locked.id])


def _without_personal(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in PERSONAL}


def _checked(name: str, value: Any) -> Any:
    """Return a detail as it is stored. Raises BadName."""
    if name not in _CHECKS:
        raise BadName("account field", name, ", ".join((*DETAILS, "currency", "mode")))
    return _CHECKS[name](name, value)


def _text(name: str, value: Any) -> str:
    longest = LONGEST[name]
    if not isinstance(value, str) or len(value := value.strip()) > longest or not value.isprintable():
        raise BadName(name, str(value)[:longest], f"at most {longest} printable characters in one line")
    return value


def _country(name: str, value: Any) -> str:
    code = _text(name, value) if isinstance(value, str) and len(value) <= 2 else str(value)
    if code and code not in codes.countries():
        raise BadName(name, code, "an ISO 3166-1 code of two letters, such as DE, or nothing")
    return code


def _issuer(name: str, value: Any) -> str:
    if value not in BillingAccount.Issuer.values:
        raise BadName(name, str(value), " or ".join(BillingAccount.Issuer.values))
    return str(value)


def _bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadName(name, str(value), "true or false")
    return value


def _lines(name: str, value: Any) -> tuple[str, ...]:
    allowed = f"at most {MOST_ADDRESS_LINES} lines of at most {LONGEST_ADDRESS_LINE} printable characters"
    if not isinstance(value, list | tuple) or not all(isinstance(line, str) for line in value):
        raise BadName(name, str(value), allowed)
    lines = tuple(filter(None, (line.strip() for line in value)))
    if len(lines) > MOST_ADDRESS_LINES or any(len(x) > LONGEST_ADDRESS_LINE or not x.isprintable() for x in lines):
        raise BadName(name, ", ".join(lines), allowed)
    return lines


def _emails(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise BadName(name, str(value), "a list of e-mail addresses")
    emails = tuple(dict.fromkeys(filter(None, (each.strip() for each in value))))
    if len(emails) > MOST_EMAILS:
        raise BadName(name, f"{len(emails)} addresses", f"at most {MOST_EMAILS}")
    if wrong := next((each for each in emails if not codes.is_email(each)), None):
        raise BadName(name, wrong, "e-mail addresses such as billing@example.com")
    return emails


def _number(largest: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
            raise BadName(name, str(value), f"a whole number from 0 to {largest}")
        return value

    return check


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "issuer": _issuer,
    "legal_name": _text,
    "address_lines": _lines,
    "city": _text,
    "postcode": _text,
    "country": _country,
    "tax_id": _text,
    "tax_rate_basis_points": _number(WHOLE_BASIS_POINTS),
    "tax_note": _text,
    "payment_terms_days": _number(LONGEST_TERMS_DAYS),
    "charge_automatically": _bool,
    "billing_emails": _emails,
}
