"""Store usage at chosen moments, as the drain does."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from uuid import UUID

from billing.drain import batch
from billing.ledger.usage_rows import UsageRow, finished
from billing.models import PriceVersion
from billing.pricing.prices import ensure_price_book
from billing.pricing.rating import Rates
from billing.wal.records import CacheResult, Purpose, State
from tenants.ids import RequestId, TenantId, first_id_at, new_id
from tests.billing.wal_records import end, start


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A plain period, from ``start`` to before ``end``."""

    start: datetime
    end: datetime


def id_at(moment: datetime) -> RequestId:
    """Return an id made in that millisecond."""
    low = new_id().int & ((1 << 74) - 1)
    random_bits = (low >> 62 << 64) | (low & ((1 << 62) - 1))
    return RequestId(UUID(int=first_id_at(moment).int | random_bits))


def row_at(
    moment: datetime,
    tenant_id: TenantId,
    *,
    model_name: str = "demo",
    purpose: Purpose = "tenant",
    state: State = "complete",
    cache_result: CacheResult = "miss",
    tokens: tuple[int, int, int] = (30, 10, 7),
    avoided: tuple[int, int, int] = (0, 0, 0),
) -> UsageRow:
    """Return the row of a request accepted at ``moment``, not yet stored."""
    request_id = id_at(moment)
    begun = start(request_id, tenant_id=tenant_id, model_name=model_name, purpose=purpose)
    return finished(begun, end(request_id, state=state, cache_result=cache_result, tokens=tokens, avoided=avoided))


def store(*rows: UsageRow) -> None:
    """Store the rows as one batch."""
    assert batch.store(rows, {}, node="here") == len(rows)


def price_from(moment: datetime, rates: Rates, model_name: str = "demo") -> PriceVersion:
    """Add a price to the platform's book from a moment that may be past, which ``set_price`` refuses."""
    return PriceVersion.objects.create(
        book=ensure_price_book(),
        model_name=model_name,
        effective_from=moment,
        **asdict(rates),
    )
