"""Prices of many models in one CSV file: all of it is set, or nothing.

Amounts are in units of the book's currency, for a million tokens or for one request, as the names of columns say, so
that neither can be taken for the other. Each row goes through ``prices.set_price``, with its guards.
"""

from __future__ import annotations

import csv
import io
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import datetime
from decimal import Decimal, DecimalException
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from billing.errors import BadPriceFile, PriceJump, PriceRefused
from billing.models import PriceBook, PriceVersion
from billing.pricing import amounts, prices
from billing.pricing.prices import PriceTable
from billing.pricing.rating import Rates
from catalogue.models import Model
from tenants.audit import Actor
from tenants.models import Tenant
from tenants.registry import SLUG

MAX_BYTES = 512 << 10
MAX_ROWS = 2000
LONGEST_NAME = 200
#: A later moment is a slip, and the last years of the calendar cannot be stored in every time zone.
LAST_YEAR = 2199
PER_MILLION, EACH, PERCENT = amounts.PICO // 10**6, amounts.PICO, 100
#: The columns of amounts, with the rate that each sets and what a cell of 1 is of it.
COLUMNS: Mapping[str, tuple[str, int]] = {
    "prompt_per_million": ("prompt_pico", PER_MILLION),
    "cached_prompt_per_million": ("cached_prompt_pico", PER_MILLION),
    "completion_per_million": ("completion_pico", PER_MILLION),
    "cache_write_per_million": ("cache_write_pico", PER_MILLION),
    "reasoning_per_million": ("reasoning_pico", PER_MILLION),
    "prediction_hit_each": ("prediction_hit_pico", EACH),
    "coalesced_each": ("coalesced_pico", EACH),
    "request_each": ("request_pico", EACH),
    "low_priority_percent": ("low_priority_bp", PERCENT),
    "high_priority_percent": ("high_priority_bp", PERCENT),
}
_DEFAULTS: Mapping[str, int | None] = {each.name: each.default for each in fields(Rates) if each.default is not MISSING}
#: Columns that a file may leave out, and rows leave empty.
OPTIONAL = (*(column for column, (rate, _) in COLUMNS.items() if rate in _DEFAULTS), "tenant", "effective_from")
HEADER = ("model", *COLUMNS, "tenant", "effective_from")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the file. ``tenant`` is a slug, empty: the platform's book; ``effective_from`` None: now."""

    line: int
    model_name: str
    tenant: str
    rates: Rates
    effective_from: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A price that the file sets. ``before`` None: that book had none for the model."""

    line: int
    model_name: str
    tenant: str
    before: Rates | None
    after: Rates
    effective_from: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a file changes, how many of its rows are in force already, and what to know, in sentences.

    ``table`` has the prices as they are, or would be, with the file; ``latest`` is when the last of them takes effect.
    """

    changes: Sequence[Change]
    unchanged: int
    notes: Sequence[str]
    table: PriceTable
    latest: datetime


def read(text: str) -> list[Row]:
    """Return the rows of a file. Raises BadPriceFile."""
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise BadPriceFile(None, "", f"The file has more than {MAX_BYTES >> 10} KiB")
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    try:
        _check_header(reader.fieldnames or ())
        rows = [_row(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise BadPriceFile(reader.line_num, "", f"This is no CSV: {error}") from None
    if not rows:
        raise BadPriceFile(None, "", "The file has no prices")
    if len(rows) > MAX_ROWS:
        raise BadPriceFile(None, "", f"The file has more than {MAX_ROWS} prices")
    seen: dict[tuple[str, str, datetime | None], int] = {}
    for row in rows:
        first = seen.setdefault((row.model_name, row.tenant, row.effective_from), row.line)
        if first != row.line:
            raise BadPriceFile(row.line, "model", f"Line {first} has a price of this model from then on, too")
    return rows


def apply(actor: Actor, rows: Sequence[Row], *, confirm: bool, dry_run: bool) -> Imported:
    """Set the prices of a file, all or none, and none with ``dry_run``. Raises BadPriceFile with the line.

    What is in force already is not set again, so the same file twice changes nothing. With ``dry_run`` nothing is
    written and no drain waits.
    """
    tenants = _tenants(rows)
    changes, table = (
        _planned(rows, tenants, confirm=confirm) if dry_run else _set_all(actor, rows, tenants, confirm=confirm)
    )
    names = {row.model_name for row in rows}
    served = set(Model.objects.filter(name__in=names).values_list("name", flat=True))
    return Imported(
        changes=changes,
        unchanged=len(rows) - len(changes),
        notes=[f"There is no model {name} yet; its price is for when there is one." for name in sorted(names - served)],
        table=table,
        latest=max((change.effective_from for change in changes), default=timezone.now()),
    )


def _set_all(
    actor: Actor, rows: Sequence[Row], tenants: Mapping[str, Tenant], *, confirm: bool
) -> tuple[list[Change], PriceTable]:
    with transaction.atomic():
        prices.exclude_batches()  # before the policy epoch is raised, as the tenants' rows are locked before it
        owners = Tenant.objects.filter(id__in=[each.id for each in tenants.values()])
        list(owners.order_by("id").select_for_update(no_key=True))
        changes = [change for row in rows if (change := _set(actor, row, tenants.get(row.tenant), confirm)) is not None]
        return changes, PriceTable(_versions(rows), prices.other_currencies())


def _planned(rows: Sequence[Row], tenants: Mapping[str, Tenant], *, confirm: bool) -> tuple[list[Change], PriceTable]:
    """Return what :func:`_set_all` would, from what the books have now, without a lock and without a write."""
    now = timezone.now()
    found: dict[tuple[UUID | None, str], list[PriceVersion]] = defaultdict(list)
    for version in _versions(rows):
        found[version.book.tenant_id, version.model_name].append(version)
    owners = Q(tenant_id=None) | Q(tenant_id__in=[each.id for each in tenants.values()])
    books = {book.tenant_id: book for book in PriceBook.objects.filter(owners)}
    changes = []
    for row in rows:
        tenant, moment = tenants.get(row.tenant), row.effective_from or now
        own = found[tenant.id if tenant else None, row.model_name]
        before = _latest(each for each in own if each.effective_from <= moment)
        if before == row.rates:
            continue
        is_taken = any(each.effective_from == moment for each in own)
        earlier = before or _latest(each for each in found[None, row.model_name] if each.effective_from < moment)
        try:
            prices.check(row.model_name, row.rates, moment, now, is_taken=is_taken, before=None if confirm else earlier)
        except PriceRefused as error:
            raise _refused(row, error) from error
        book = books.get(tenant.id if tenant else None) or _new_book(tenant)
        version = PriceVersion(book=book, model_name=row.model_name, effective_from=moment, **asdict(row.rates))
        insort(own, version, key=attrgetter("effective_from"))
        changes.append(_change(row, before, moment))
    every = (version for versions in found.values() for version in versions)
    return changes, PriceTable(sorted(every, key=attrgetter("effective_from")), prices.other_currencies())


def in_force() -> Iterator[tuple[str, ...]]:
    """Yield the header and a row for each price in force, which :func:`read` reads."""
    yield HEADER
    slugs: dict[UUID, str] = dict(Tenant.objects.values_list("id", "slug"))
    versions = PriceVersion.objects.filter(effective_from__lte=timezone.now()).select_related("book")
    for version in versions.order_by("model_name", "book_id", "-effective_from").distinct("model_name", "book_id"):
        cells = (_cell(getattr(version, rate), one, version.book.currency) for rate, one in COLUMNS.values())
        owner = version.book.tenant_id
        yield (version.model_name, *cells, slugs.get(owner, str(owner)) if owner else "", "")


def _cell(value: int | None, one: int, currency: str) -> str:
    return "" if value is None else amounts.units(value * amounts.PICO // one, currency)


def _check_header(names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in HEADER]:
        raise BadPriceFile(1, unknown[0], f"There is no such column; use {', '.join(HEADER)}")
    if len(set(names)) != len(names):
        raise BadPriceFile(1, "", "A column is given twice")
    if missing := [name for name in HEADER if name not in names and name not in OPTIONAL]:
        raise BadPriceFile(1, missing[0], "This column is missing")


def _row(line: int, cells: dict[str, str]) -> Row:
    if None in cells or None in cells.values():
        raise BadPriceFile(line, "", "The line has more or fewer cells than the first one")
    model = cells["model"].strip()
    if not 0 < len(model) <= LONGEST_NAME or not model.isprintable():
        raise BadPriceFile(line, "model", f"Use 1 to {LONGEST_NAME} printable characters")
    tenant = cells.get("tenant", "").strip()
    if tenant and not SLUG.fullmatch(tenant):
        raise BadPriceFile(line, "tenant", f"There is no tenant {tenant[:63]!r}")
    rates: dict[str, Any] = {rate: _rate(line, column, cells.get(column, "")) for column, (rate, _) in COLUMNS.items()}
    return Row(
        line=line,
        model_name=model,
        tenant=tenant,
        rates=Rates(**rates),
        effective_from=_moment(line, cells.get("effective_from", "").strip()),
    )


def _rate(line: int, column: str, text: str) -> int | None:
    """Return the amount in a cell as the rate that it sets; None: it sets none."""
    rate, one = COLUMNS[column]
    if not text.strip() and column in OPTIONAL:
        return _DEFAULTS[rate]
    try:
        exact = Decimal(text.strip()) * one
    except DecimalException:
        raise BadPriceFile(line, column, f"{text.strip()[:40]!r} is no amount; use a number as 0.15") from None
    if not exact.is_finite() or exact < 0 or exact > 10**18:
        raise BadPriceFile(line, column, "Use an amount of 0 or more")
    if exact != exact.to_integral_value() and one == PERCENT:
        raise BadPriceFile(line, column, "It has too many decimals; use two at most")
    if exact != exact.to_integral_value():
        raise BadPriceFile(line, column, "It has too many decimals: the price of one is no whole number of 10⁻¹²")
    return int(exact)


def _moment(line: int, text: str) -> datetime | None:
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or found.year > LAST_YEAR:
        raise BadPriceFile(line, "effective_from", "Use a moment with its time zone, as 2026-12-01T00:00:00Z")
    return found


def _tenants(rows: Sequence[Row]) -> dict[str, Tenant]:
    found = {each.slug: each for each in Tenant.objects.filter(slug__in={row.tenant for row in rows} - {""})}
    for row in rows:
        if row.tenant and row.tenant not in found:
            raise BadPriceFile(row.line, "tenant", f"There is no tenant {row.tenant[:63]!r}")
    return found


def _set(actor: Actor, row: Row, tenant: Tenant | None, confirm: bool) -> Change | None:
    """Set one price; None if it is in force then already."""
    book = prices.book_of(tenant)
    before = _own_before(book, row)
    if before == row.rates:
        return None
    try:
        version = prices.set_price(
            actor, book, row.model_name, row.rates, effective_from=row.effective_from, confirm=confirm
        )
    except PriceRefused as error:
        raise _refused(row, error) from error
    return _change(row, before, version.effective_from)


def _refused(row: Row, error: PriceRefused) -> BadPriceFile:
    return BadPriceFile(row.line, "", str(error), is_jump=isinstance(error, PriceJump))


def _change(row: Row, before: Rates | None, moment: datetime) -> Change:
    return Change(
        line=row.line,
        model_name=row.model_name,
        tenant=row.tenant,
        before=before,
        after=row.rates,
        effective_from=moment,
    )


def _versions(rows: Sequence[Row]) -> QuerySet[PriceVersion]:
    """Return the prices of the models of a file, the earliest first."""
    versions = PriceVersion.objects.filter(model_name__in={row.model_name for row in rows}).select_related("book")
    return versions.order_by("effective_from")


def _new_book(tenant: Tenant | None) -> PriceBook:
    """Return the book that the first price would make."""
    return PriceBook() if tenant is None else PriceBook(tenant_id=tenant.id, currency=tenant.currency)


def _latest(versions: Iterable[PriceVersion]) -> Rates | None:
    """Return the rates of the last of these prices, which are in order of time."""
    every = list(versions)
    return prices.rates_of(every[-1]) if every else None


def _own_before(book: PriceBook, row: Row) -> Rates | None:
    """Return what this book has for the model at the row's moment."""
    moment = row.effective_from or timezone.now()
    versions = PriceVersion.objects.filter(book=book, model_name=row.model_name, effective_from__lte=moment)
    found = versions.order_by("-effective_from").first()
    return None if found is None else prices.rates_of(found)
