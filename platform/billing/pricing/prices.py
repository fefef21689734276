"""Price books: immutable price versions, each effective from one moment on.

A request is priced at the moment in its id, when it was accepted: by the tenant's own book if it has a price for the
model, otherwise by the platform's. Requests are never repriced. Therefore a price change and the drain's batches
exclude each other (:func:`exclude_changes`): a batch stored before a change contains only requests accepted before it.
A request accepted before its model had a price waits, and is charged the first price that takes effect.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import cast
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from billing.errors import PriceExists, PriceInThePast, PriceJump, PriceOutOfRange
from billing.models import PriceBook, PriceVersion
from billing.pricing.classes import LIST_PRICE_BP, PER_REQUEST, LineClass
from billing.pricing.rating import Price, Rates
from tenants import policy_epoch
from tenants.audit import Actor, record
from tenants.ids import created_at, first_millisecond, milliseconds_of
from tenants.models import Tenant

PLATFORM_BOOK = "platform"
#: $1,000 per million tokens: with counts below 2³¹ in three classes, of which the others are parts, an amount stays
#: below 2⁶³.
HIGHEST_TOKEN_PICO = 10**9
#: $1 per request.
HIGHEST_REQUEST_PICO = 10**12
#: Ten times the list price.
HIGHEST_MULTIPLIER_BP = 10 * LIST_PRICE_BP
RATES = tuple(each.name for each in fields(Rates))
_PER_REQUEST = frozenset(f"{each}_pico" for each in PER_REQUEST)
#: A larger factor, up or down, or a change to or from zero, is more likely a wrong unit than a decision.
JUMP = 10
#: $0.15, $0.015 and $0.60 per million tokens; hits and coalesced responses are free.
DEMO_RATES = Rates(prompt_pico=150_000, cached_prompt_pico=15_000, completion_pico=600_000)
#: Number of the advisory lock: "price" in ASCII.
_LOCK = 0x7072696365


class PriceTable:
    """The prices of some tenants and models, to rate many requests with one query."""

    def __init__(self, versions: Iterable[PriceVersion], currencies: Mapping[UUID, str] | None = None) -> None:
        """``versions`` are sorted by ``effective_from``, with their books loaded.

        ``currencies``: of the tenants whose account is not in that of the platform's book: it has no prices for them.
        """
        self._currencies = currencies or {}
        self._prices: dict[tuple[UUID | None, str], list[Price]] = {}
        #: The first millisecond at which each price applies.
        self._since_ms: dict[tuple[UUID | None, str], list[int]] = {}
        for version in versions:
            named = (version.book.tenant_id, version.model_name)
            self._prices.setdefault(named, []).append(_price(version))
            self._since_ms.setdefault(named, []).append(first_millisecond(version.effective_from))

    def at(self, tenant_id: UUID, model_name: str, moment: datetime) -> Price | None:
        """Return the price in force at ``moment``, or None."""
        for owner in (tenant_id, None):
            prices = self._payable(tenant_id, owner, model_name)
            position = bisect_right(prices, moment, key=_effective_from)
            if position:
                return prices[position - 1]
        return None

    def scheduled(self, tenant_id: UUID, model_name: str, moment: datetime) -> list[Price]:
        """Return the prices after ``moment``: the tenant's own if it has any, then or now, else the platform's."""
        for owner in (tenant_id, None):
            if prices := self._payable(tenant_id, owner, model_name):
                return prices[bisect_right(prices, moment, key=_effective_from) :]
        return []

    def accepted(self, tenant_id: UUID, model_name: str, request_id: UUID) -> Price | None:
        """Return the price of a request that runs now, as :meth:`charged` does."""
        for owner in (tenant_id, None):
            since_ms = self._since_ms.get((owner, model_name))
            if owner is None and not self._payable(tenant_id, owner, model_name):
                continue
            if since_ms is not None and (position := bisect_right(since_ms, milliseconds_of(request_id))):
                return self._prices[owner, model_name][position - 1]
        return self.charged(tenant_id, model_name, created_at(request_id), timezone.now())

    def charged(self, tenant_id: UUID, model_name: str, moment: datetime, now: datetime) -> Price | None:
        """Return the price of a request accepted at ``moment``; None while no price is in force at ``now``."""
        if found := self.at(tenant_id, model_name, moment):
            return found
        first = (self._payable(tenant_id, owner, model_name)[:1] for owner in (tenant_id, None))
        in_force = [price for prices in first for price in prices if price.effective_from <= now]
        return min(in_force, key=_effective_from, default=None)

    def _payable(self, tenant_id: UUID, owner: UUID | None, model_name: str) -> list[Price]:
        """Return the prices of a book that a tenant can be charged: those in the currency of its account."""
        found = self._prices.get((owner, model_name), [])
        if found and owner is None and self._currencies.get(tenant_id, found[0].currency) != found[0].currency:
            return []
        return found


def table_for(tenant_ids: Iterable[UUID], model_names: Iterable[str]) -> PriceTable:
    """Return every price that these tenants may be charged for these models."""
    versions = (
        PriceVersion.objects.filter(model_name__in=set(model_names))
        .filter(Q(book__tenant_id__in=set(tenant_ids)) | Q(book__tenant_id=None))
        .select_related("book")
        .order_by("effective_from")
    )
    return PriceTable(versions, other_currencies())


def load() -> PriceTable:
    """Return all prices. A later price change raises the policy epoch."""
    return PriceTable(PriceVersion.objects.select_related("book").order_by("effective_from"), other_currencies())


def other_currencies() -> dict[UUID, str]:
    """Return the currency of each tenant that does not pay in that of the platform's book."""
    of_platform = PriceBook.objects.filter(tenant_id=None).values("currency")
    return dict(Tenant.objects.exclude(currency__in=of_platform).values_list("id", "currency"))


def exclude_changes() -> None:
    """Prevent price changes until the current transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [_LOCK])


def exclude_batches() -> None:
    """Prevent batches and other price changes until the current transaction ends.

    Take this lock before the policy epoch is raised: a price change raises the epoch while it holds the lock.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])


def lock_owners(model_name: str) -> None:
    """Lock the tenants with a price of their own for a model until the current transaction ends.

    Call it before the policy epoch is raised, if several prices are set after that: their audit entries wait for their
    tenants, and whoever changes a tenant raises the epoch last.
    """
    owners = PriceBook.objects.filter(versions__model_name=model_name).exclude(tenant_id=None).values("tenant_id")
    list(Tenant.objects.filter(id__in=owners).order_by("id").select_for_update(no_key=True).values_list("id"))


def set_price(
    actor: Actor,
    book: PriceBook,
    model_name: str,
    rates: Rates,
    *,
    effective_from: datetime | None = None,
    confirm: bool = False,
) -> PriceVersion:
    """Add a price version and its audit entry in one transaction, and notify gateways. None: effective at once.

    ``confirm`` allows a change of more than tenfold. Raises PriceOutOfRange, PriceInThePast, PriceJump, PriceExists.
    """
    with transaction.atomic():
        exclude_batches()
        now = timezone.now()
        moment = effective_from or now
        versions = PriceVersion.objects.filter(book=book, model_name=model_name)
        is_taken = versions.filter(effective_from=moment).exists()
        before = _rates_before(book, model_name, moment)
        check(model_name, rates, moment, now, is_taken=is_taken, before=None if confirm else before)
        version = PriceVersion.objects.create(book=book, model_name=model_name, effective_from=moment, **asdict(rates))
        record(
            actor,
            "price.set",
            ("price_version", version.id),
            tenant=Tenant.objects.get(id=book.tenant_id) if book.tenant_id else None,
            before=None if before is None else asdict(before),
            after={**asdict(rates), "book": book.name, "model": model_name, "effective_from": moment.isoformat()},
        )
        policy_epoch.bump(models=True)
        return version


def check(
    model_name: str, rates: Rates, moment: datetime, now: datetime, *, is_taken: bool, before: Rates | None
) -> None:
    """Raise PriceOutOfRange, PriceInThePast, PriceExists or PriceJump for a price that may not be set at a moment.

    ``is_taken``: its book has a price of the model from then on. ``before``: the rates until then, in this book or else
    the platform's; None: there are none, or any change is meant.
    """
    _check_range(model_name, rates)
    if moment < now:
        raise PriceInThePast(model_name, moment, now)
    if is_taken:
        raise PriceExists(model_name, moment)
    if before is not None:
        _check_jump(model_name, before, rates)


def ensure_price_book() -> PriceBook:
    """Return the platform's book, created on the first call."""
    book, _ = PriceBook.objects.get_or_create(name=PLATFORM_BOOK, defaults={"tenant_id": None})
    return book


def book_of(tenant: Tenant | None) -> PriceBook:
    """Return the platform's price book or a tenant's own, which is created on first use."""
    if tenant is None:
        return ensure_price_book()
    book, _ = PriceBook.objects.get_or_create(
        tenant_id=tenant.id, defaults={"name": f"tenant {tenant.slug}", "currency": tenant.currency}
    )
    return book


def ensure_demo_prices(actor: Actor, model_name: str) -> None:
    """Set the demo prices for a model in the platform's book, unless it has a price there."""
    book = ensure_price_book()
    if not PriceVersion.objects.filter(book=book, model_name=model_name).exists():
        set_price(actor, book, model_name, DEMO_RATES)


def rates_of(version: PriceVersion) -> Rates:
    """Return the rates of a version."""
    return Rates(**{name: getattr(version, name) for name in RATES})


def in_force(model_names: Iterable[str]) -> dict[str, Rates]:
    """Return the rates of these models now in the platform's book, without the models that have no price."""
    versions = PriceVersion.objects.filter(
        book__tenant_id=None, model_name__in=set(model_names), effective_from__lte=timezone.now()
    )
    latest = versions.order_by("model_name", "-effective_from").distinct("model_name")
    return {each.model_name: rates_of(each) for each in latest}


def priced(model_names: Iterable[str], tenant_ids: Iterable[UUID] = ()) -> set[str]:
    """Return which of these models have a price in force, in the platform's book or in that of one of the tenants.

    Usage of the others is unrated.
    """
    books = Q(book__tenant_id=None) | Q(book__tenant_id__in=set(tenant_ids))
    versions = PriceVersion.objects.filter(books, effective_from__lte=timezone.now())
    return set(versions.filter(model_name__in=set(model_names)).values_list("model_name", flat=True))


def missing(tenant: Tenant) -> list[str]:
    """Return the models that the platform's book prices in another currency than the tenant's, and its own does not."""
    own = PriceVersion.objects.filter(book__tenant_id=tenant.id).values("model_name")
    other = PriceVersion.objects.filter(book__tenant_id=None).exclude(book__currency=tenant.currency)
    names = other.exclude(model_name__in=own).order_by("model_name").distinct("model_name")
    return list(names.values_list("model_name", flat=True))


def carry_over(actor: Actor, old_name: str, new_name: str) -> None:
    """Give a renamed model its prices: in every book the one in force now, and those that are scheduled."""
    now = timezone.now()
    for book in PriceBook.objects.filter(versions__model_name=old_name).distinct().order_by("id"):
        versions = PriceVersion.objects.filter(book=book, model_name=old_name)
        current = versions.filter(effective_from__lte=now).order_by("-effective_from").first()
        scheduled = versions.filter(effective_from__gt=now).order_by("effective_from")
        if current is not None:
            set_price(actor, book, new_name, rates_of(current), confirm=True)
        for version in scheduled:
            set_price(actor, book, new_name, rates_of(version), effective_from=version.effective_from, confirm=True)


def _rates_before(book: PriceBook, model_name: str, moment: datetime) -> Rates | None:
    """Return the rates until ``moment`` in this book, or otherwise in the platform's."""
    versions = PriceVersion.objects.filter(model_name=model_name, effective_from__lt=moment).order_by("-effective_from")
    found = versions.filter(book=book).first() or versions.filter(book__tenant_id=None).first()
    return None if found is None else rates_of(found)


def _check_range(model_name: str, rates: Rates) -> None:
    for name, value in _set_in(rates):
        if not 0 <= value <= _highest(name):
            raise PriceOutOfRange(model_name, name, value, _highest(name))
    for priority in ("low", "high"):
        for name, pico in _set_in(rates.at(priority)):
            if pico > _highest(name):
                raise PriceOutOfRange(model_name, name, pico, _highest(name), priority=priority)


def _highest(name: str) -> int:
    if name.endswith("_bp"):
        return HIGHEST_MULTIPLIER_BP
    return HIGHEST_REQUEST_PICO if name in _PER_REQUEST else HIGHEST_TOKEN_PICO


def _check_jump(model_name: str, before: Rates, after: Rates) -> None:
    """Raise PriceJump for a price that changes too much. A class without one has what it costs then."""
    for name in RATES:
        old, new = _value(before, name), _value(after, name)
        low, high = sorted((old, new))
        if high > JUMP * low:
            raise PriceJump(model_name, name, old, new)


def _set_in(rates: Rates) -> list[tuple[str, int]]:
    return [(name, value) for name, value in asdict(rates).items() if value is not None]


def _value(rates: Rates, name: str) -> int:
    found: int | None = getattr(rates, name)
    return rates.of(cast(LineClass, name.removesuffix("_pico"))) if found is None else found


def _price(version: PriceVersion) -> Price:
    return Price(
        version_id=version.id,
        currency=version.book.currency,
        effective_from=version.effective_from,
        rates=rates_of(version),
    )


def _effective_from(price: Price) -> datetime:
    return price.effective_from
