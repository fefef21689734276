"""Change a tenant's credit: what it paid in advance, promotions, refunds, corrections, and what takes one back.

A return is of money that had paid an invoice: :mod:`billing.accounts.returns`.

A caller names each change by a key of its own: the same again returns the first one. Amounts that one person posts for
a tenant within a day, together above ``CREDIT_APPROVAL_ABOVE``, wait until a second person approves them. Each change
is one transaction with its entry, its posting in the ledger and its audit entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet, Sum
from django.db.models.functions import Abs, Now
from django.utils import timezone

from billing import second_person
from billing.accounts import balance, entries, returns
from billing.accounts.balance import Part
from billing.budgets import spending
from billing.errors import BadCredit, CreditRefused
from billing.models import CreditEntry, CreditRequest
from billing.models.credits import LONGEST_KEY, LONGEST_REASON, LONGEST_REFERENCE
from billing.pricing.amounts import PICO, pico_per_minor, precision, units
from tenants import audit
from tenants.audit import Actor
from tenants.errors import NotAllowed, NotFound
from tenants.ids import PLATFORM_SLUG
from tenants.models import Tenant

Kind = CreditRequest.Kind
State = CreditRequest.State
#: The most that one change moves, and the most credit that a tenant has: counters in Redis have 64 bits.
LARGEST_PICO = 1_000_000 * PICO
LARGEST_BALANCE_PICO = 4_000_000 * PICO
#: One person's amounts count together for this long, so that nobody splits one to avoid a second person.
TOGETHER = timedelta(hours=24)
LONGEST_PROMOTION = timedelta(days=3660)
#: Kinds that move money from or to the tenant, so they have whole cents.
_IN_CENTS = frozenset({Kind.TOP_UP, Kind.REFUND, Kind.RETURN})
#: Kinds that a tenant which is archived can still have.
_FOR_ARCHIVED = frozenset({Kind.REFUND, Kind.CORRECTION, Kind.RETURN, Kind.REVERSAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCredit:
    """What is to be changed. ``amount_pico`` is above 0; a correction's may be negative; a reversal has none."""

    kind: str
    amount_pico: int | None = None
    reason: str = ""
    reference: str = ""
    #: Of a promotion.
    expires_at: datetime | None = None
    #: The entry that this one takes back, refunds or corrects. Either of a return's two takes back all of it.
    refers_to: UUID | None = None
    #: Of a return: the invoice that the money had paid, by which it has tax. None: all of it is revenue.
    invoice: UUID | None = None


@transaction.atomic
def submit(actor: Actor, tenant: Tenant, key: str, wanted: NewCredit) -> tuple[CreditRequest, bool]:
    """Post a change, or keep it until a second person approves it; return it, and whether it is new.

    A key that was used for the same change returns that one. Raises BadCredit, CreditRefused, NotAllowed, NotFound.
    """
    invoice = None if wanted.invoice is None else returns.lock(tenant.id, wanted.invoice)
    tenant = lock(tenant)
    check_key(key)
    _check_texts(wanted)
    target = _target(tenant, wanted)
    amount = _amount(tenant, wanted, target)
    if (known := CreditRequest.objects.filter(tenant_id=tenant.id, key=key).first()) is not None:
        if not _is_same(known, wanted, amount, target):
            raise CreditRefused(tenant.slug, f"the key {key!r} was used for another change", "Use a new key.")
        return known, False
    _check_date(wanted)
    if wanted.kind == Kind.REVERSAL and target is not None:
        _require_not_reversed(tenant, target)
    if wanted.kind == Kind.RETURN:
        _require_no_return(tenant, wanted.reference.strip())
    tax = 0 if invoice is None else returns.tax_of(invoice, amount)
    _require_billed(tenant, wanted.kind)
    who = second_person.person(actor)
    request = CreditRequest(
        tenant_id=tenant.id,
        key=key,
        kind=wanted.kind,
        amount_pico=amount,
        currency=tenant.currency,
        expires_at=wanted.expires_at,
        reason=wanted.reason.strip(),
        reference=wanted.reference.strip(),
        refers_to=target,
        invoice=invoice,
        tax_pico=tax,
        needs_approval=is_large(tenant, who, amount),
        requested_by=who,
        state=State.POSTED,
    )
    _require_room(tenant, request, _part(request))
    if request.needs_approval:
        request.state = State.PENDING
    request.save(force_insert=True)
    if not request.needs_approval:
        _post(request)
    action = "credit.requested" if request.needs_approval else "credit.posted"
    audit.record(actor, action, ("credit", request.id), tenant=tenant, after=_facts(request))
    request.refresh_from_db()
    return request, True


@transaction.atomic
def approve(actor: Actor, tenant: Tenant, request_id: UUID) -> CreditRequest:
    """Post a change that another person requested, but for a credit note. Raises NotFound, CreditRefused."""
    tenant = lock(tenant)
    request = awaited(tenant, request_id)
    if request.kind == Kind.CREDIT_NOTE:
        raise ValueError("billing.invoices.crediting approves credit notes")
    if (objection := second_person.objection(actor, request.requested_by)) is not None:
        raise CreditRefused(tenant.slug, objection, "")
    if request.expires_at is not None and request.expires_at <= timezone.now():
        raise CreditRefused(tenant.slug, "the promotion would have expired", "Reject it and request another.")
    if request.kind == Kind.REVERSAL:
        assert request.refers_to is not None
        _require_not_reversed(tenant, request.refers_to, without=request)
    _require_billed(tenant, request.kind)
    _require_room(tenant, request, _part(request))
    return decide(actor, tenant, request, State.POSTED)


@transaction.atomic
def reject(actor: Actor, tenant: Tenant, request_id: UUID) -> CreditRequest:
    """Drop a change that waits for approval; whoever requested it may do so too. Raises NotFound, CreditRefused."""
    tenant = lock(tenant)
    return decide(actor, tenant, awaited(tenant, request_id), State.REJECTED)


def pending(tenant: Tenant | None = None) -> list[CreditRequest]:
    """Return what waits for a second person, of a tenant or of all, the newest first, with its invoices."""
    rows = CreditRequest.objects.filter(state=State.PENDING).select_related("refers_to", "invoice")
    found = rows.defer("invoice__document").order_by("-id")
    return list(found if tenant is None else found.filter(tenant_id=tenant.id))


def history(tenant: Tenant) -> QuerySet[CreditEntry]:
    """Return the entries of a tenant, the newest first, with what asked for them and the months that they paid."""
    found = CreditEntry.objects.filter(tenant_id=tenant.id).select_related("request", "closing")
    return found.order_by("-id")


def decide(actor: Actor, tenant: Tenant, request: CreditRequest, state: State) -> CreditRequest:
    """Post or reject a change that waits, whose tenant is locked, unchecked. The caller posts a credit note."""
    who = second_person.person(actor)
    CreditRequest.objects.filter(id=request.id).update(state=state, decided_by=who, decided_at=Now())
    request.refresh_from_db()
    if state == State.POSTED and request.kind != Kind.CREDIT_NOTE:
        _post(request)
    action = "credit.approved" if state == State.POSTED else "credit.rejected"
    facts = _facts(request) | {"requested_by": request.requested_by}
    audit.record(actor, action, ("credit", request.id), tenant=tenant, after=facts)
    request.refresh_from_db()
    return request


def lock(tenant: Tenant) -> Tenant:
    """Keep the tenant's state, currency and credit until the transaction ends. Raises NotAllowed for the platform's."""
    locked = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
    if locked.slug == PLATFORM_SLUG:
        raise NotAllowed("tenant", locked.slug, "the platform's own, which has no bills")
    balance.lock(locked.id)
    return locked


def check_key(key: str) -> None:
    """Raise BadCredit for a key that no change may have."""
    if not 1 <= len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
        raise BadCredit("key", f"use 1 to {LONGEST_KEY} printable ASCII characters")


def _post(request: CreditRequest) -> None:
    amount = int(request.amount_pico)
    if request.kind == Kind.PROMOTION:
        assert request.expires_at is not None
        entries.grant(request.tenant_id, request.currency, amount, request.expires_at, request=request)
    elif request.kind == Kind.REVERSAL:
        assert request.refers_to is not None
        if (first := returns.first_of(request.refers_to)) is not None:
            returns.take_back(first, request)
        else:
            entries.reverse(request.refers_to, entries.Kind.REVERSAL, request=request)
    elif request.kind == Kind.RETURN:
        returns.post(request, _part(request))
    else:
        given: dict[str, Any] = {"request": request, "refers_to": request.refers_to}
        entries.add(request.tenant_id, request.currency, _part(request), request.kind, amount, **given)


def _part(request: CreditRequest) -> Part:
    """Return the part of the tenant's credit that a request changes, with what is left of it now."""
    promotion_id = request.refers_to.promotion_id if request.kind == Kind.REVERSAL and request.refers_to else None
    found = balance.of(request.tenant_id)
    left = found.prepaid_pico if promotion_id is None else balance.left_of(promotion_id)
    return Part(promotion_id=promotion_id, left_pico=left)


def _require_room(tenant: Tenant, request: CreditRequest, part: Part) -> None:
    """Raise CreditRefused for an amount that is more than there is to take, or that makes the credit too large."""
    amount = int(request.amount_pico)
    if request.refers_to is not None and request.kind == Kind.REVERSAL and returns.first_of(request.refers_to):
        return  # it leaves the credit as it is
    if request.kind != Kind.PROMOTION and part.left_pico + amount < 0:
        what = "prepaid credit" if part.promotion_id is None else "the promotion"
        left, wanted = units(part.left_pico, tenant.currency), units(-amount, tenant.currency)
        reason = f"{left} {tenant.currency} of {what} are left, less than {wanted}"
        raise CreditRefused(tenant.slug, reason, "Take at most that.")
    if amount < 0:
        for budget in spending.prepaid_balances([tenant.id]):
            available = max(0, spending.available_pico(budget))
            if available + amount < 0:
                used = "the rest covers usage that is not billed yet"
                reason = (
                    f"{units(available, tenant.currency)} {tenant.currency} of the balance are available, and {used}"
                )
                raise CreditRefused(tenant.slug, reason, "Take at most that.")
    if amount > 0 and balance.of(tenant.id).total_pico + amount > LARGEST_BALANCE_PICO:
        most = f"its credit would be above {units(LARGEST_BALANCE_PICO, tenant.currency)} {tenant.currency}"
        raise CreditRefused(tenant.slug, most, "Add less.")


def _require_billed(tenant: Tenant, kind: str) -> None:
    if tenant.state == Tenant.State.ARCHIVED and kind not in _FOR_ARCHIVED:
        raise NotAllowed("tenant", tenant.slug, tenant.state)


def is_large(tenant: Tenant, who: str, amount: int) -> bool:
    """Return whether a second person must approve an amount, with those that this one posted alone within a day."""
    alone = CreditRequest.objects.filter(
        tenant_id=tenant.id,
        requested_by=who,
        needs_approval=False,
        state=State.POSTED,
        created_at__gt=timezone.now() - TOGETHER,
    )
    before = int(alone.aggregate(total=Sum(Abs("amount_pico"), default=0))["total"])
    return before + abs(amount) > settings.CREDIT_APPROVAL_ABOVE * PICO


def _target(tenant: Tenant, wanted: NewCredit) -> CreditEntry | None:
    """Return the entry that a change refers to. Raises BadCredit, NotFound, CreditRefused."""
    if wanted.refers_to is None:
        if wanted.kind == Kind.REVERSAL:
            raise BadCredit("refers_to", "give the entry that is taken back")
        return None
    if wanted.kind not in {Kind.REVERSAL, Kind.REFUND, Kind.CORRECTION}:
        raise BadCredit("refers_to", f"a {wanted.kind} refers to no entry")
    found = CreditEntry.objects.filter(tenant_id=tenant.id, id=wanted.refers_to).first()
    if found is None:
        raise NotFound("credit entry", str(wanted.refers_to))
    return (returns.first_of(found) or found) if wanted.kind == Kind.REVERSAL else found


def _amount(tenant: Tenant, wanted: NewCredit, target: CreditEntry | None) -> int:
    """Return what a change adds to the credit; negative: takes. Raises BadCredit, CreditRefused."""
    if wanted.kind not in Kind.values:
        raise BadCredit("kind", f"use one of {', '.join(Kind.values)}")
    if wanted.kind == Kind.CREDIT_NOTE:
        raise BadCredit("kind", "a credit note is made on its invoice: hearth invoice credit")
    if wanted.kind != Kind.RETURN and wanted.invoice is not None:
        raise BadCredit("invoice", f"a {wanted.kind} is of no invoice; only a return is")
    if wanted.kind == Kind.REVERSAL:
        assert target is not None
        if wanted.amount_pico is not None:
            raise BadCredit("amount_pico", "a reversal takes back all of the entry; leave it out")
        if target.kind not in Kind.values or target.kind == Kind.REVERSAL:
            raise CreditRefused(tenant.slug, f"an entry of the kind {target.kind} cannot be taken back", "")
        return -int(target.amount_pico)
    amount = wanted.amount_pico
    signed = wanted.kind == Kind.CORRECTION
    if amount is None or not (amount > 0 or (signed and amount < 0)) or abs(amount) > LARGEST_PICO:
        sign = "not 0, from -" if signed else "above 0, up to "
        raise BadCredit(
            "amount_pico", f"use an amount {sign}{units(LARGEST_PICO, tenant.currency)}{' to that' if signed else ''}"
        )
    if wanted.kind in _IN_CENTS and amount % pico_per_minor(tenant.currency):
        raise BadCredit("amount_pico", f"an amount in {tenant.currency} has {precision(tenant.currency)}")
    return -amount if wanted.kind == Kind.REFUND else amount


def _require_not_reversed(tenant: Tenant, target: CreditEntry, without: CreditRequest | None = None) -> None:
    taken = CreditEntry.objects.filter(refers_to=target, kind=CreditEntry.Kind.REVERSAL).exists()
    waiting = CreditRequest.objects.filter(refers_to=target, kind=Kind.REVERSAL, state=State.PENDING)
    if without is not None:
        waiting = waiting.exclude(id=without.id)
    if taken or waiting.exists():
        raise CreditRefused(tenant.slug, f"the entry {target.id} is taken back already", "")


def _require_no_return(tenant: Tenant, reference: str) -> None:
    """Raise CreditRefused if money went back already by what is referred to, such as a refund or a dispute."""
    rows = returns.standing(CreditRequest.objects.filter(tenant_id=tenant.id, reference=reference))
    if reference and (known := rows.first()) is not None:
        raise CreditRefused(tenant.slug, f"the return of {reference} is {known.state} already", "")


def _check_texts(wanted: NewCredit) -> None:
    for name, text, longest in (
        ("reason", wanted.reason, LONGEST_REASON),
        ("reference", wanted.reference, LONGEST_REFERENCE),
    ):
        if len(text) > longest or not text.isprintable():
            raise BadCredit(name, f"use at most {longest} printable characters in one line")
    if not wanted.reason.strip() and wanted.kind in {Kind.CORRECTION, Kind.RETURN, Kind.REVERSAL, Kind.REFUND}:
        raise BadCredit("reason", f"say why; a {wanted.kind} needs it")


def _check_date(wanted: NewCredit) -> None:
    now = timezone.now()
    if wanted.kind != Kind.PROMOTION:
        if wanted.expires_at is not None:
            raise BadCredit("expires_at", "only a promotion expires")
        return
    if wanted.expires_at is None or not now < wanted.expires_at <= now + LONGEST_PROMOTION:
        raise BadCredit("expires_at", "give a time in the next ten years")


def _is_same(known: CreditRequest, wanted: NewCredit, amount: int, target: CreditEntry | None) -> bool:
    same: dict[str, Any] = {
        "kind": wanted.kind,
        "amount_pico": amount,
        "reason": wanted.reason.strip(),
        "reference": wanted.reference.strip(),
        "expires_at": wanted.expires_at,
        "refers_to_id": None if target is None else target.id,
        "invoice_id": wanted.invoice,
    }
    return all(getattr(known, name) == value for name, value in same.items())


def awaited(tenant: Tenant, request_id: UUID) -> CreditRequest:
    """Return a request that waits for approval. Raises NotFound, CreditRefused."""
    found = CreditRequest.objects.select_related("refers_to").filter(tenant_id=tenant.id, id=request_id).first()
    if found is None:
        raise NotFound("credit request", str(request_id))
    if found.state != State.PENDING:
        raise CreditRefused(tenant.slug, f"the request is {found.state} already", "")
    return found


def _facts(request: CreditRequest) -> dict[str, Any]:
    return {
        "kind": request.kind,
        "amount_pico": int(request.amount_pico),
        "currency": request.currency,
        "reason": request.reason,
        "reference": request.reference,
        "refers_to": None if request.refers_to_id is None else str(request.refers_to_id),
        "invoice": None if request.invoice_id is None else str(request.invoice_id),
        "tax_pico": int(request.tax_pico),
        "expires_at": None if request.expires_at is None else request.expires_at.isoformat(),
    }
