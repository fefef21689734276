"""A tenant's monthly savings statement: what the prediction cache and prefix caches saved, beside the statement.

It is made of the same requests as the statement, and frozen with it when the month closes. What an earlier release
froze has the totals alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from billing.pricing import amounts
from billing.reports import model_savings, statements
from billing.reports.model_savings import ModelSavings
from billing.reports.statements import Savings
from tenants.ids import TenantId
from tenants.models import Project, Tenant

CSV_HEADER = (
    "model", "cache", "requests", "tokens", "saved_pico", "saved", "currency", "engine_seconds", "engine_seconds_are",
)  # fmt: skip
#: In words, for pages and the API.
METHOD = (
    "Prediction: a hit, or a response shared with an identical request, saves the tokens and the engine time of the "
    "request that it repeats, as they were recorded, and its price minus what it is charged. Prefix: a cached prompt "
    "token saves the difference of the two prompt prices. Its engine time is an estimate: cached tokens times the time "
    "for one more uncached token. That is the slope of the time to the first token, without the queue, over uncached "
    f"prompt tokens, of the model's streams in the month, if there were {model_savings.FEWEST_STREAMS} or more. A "
    "request counts for one cache only."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one cache saved of one model. ``requests``: those that ran on no engine; None for the prefix cache."""

    model_name: str
    cache: Literal["prediction", "prefix"]
    requests: int | None
    tokens: int
    pico: int
    engine_ms: int | None
    #: How ``engine_ms`` is known.
    engine_time_is: Literal["recorded", "estimated", "not measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsStatement:
    """What the caches saved a tenant, or one of its projects, in a month. ``models`` add up to ``total``.

    ``models`` is None where only the totals were frozen.
    """

    tenant_id: TenantId
    year: int
    month: int
    timezone: str
    start: datetime
    end: datetime
    currency: str
    requests: int
    usage_pico: int
    total: Savings
    models: tuple[ModelSavings, ...] | None
    project: str | None
    closed_at: datetime | None
    revision: int | None

    @property
    def saved_pico(self) -> int:
        """What both caches saved."""
        return self.total.prediction_pico + self.total.prefix_pico

    @property
    def without_caches_pico(self) -> int:
        """What the same responses would have cost at list prices without either cache."""
        return self.usage_pico + self.saved_pico

    @property
    def prefix_engine_ms(self) -> int | None:
        """The estimated engine time that prefix caches saved, of models with a measured prefill; None: of none."""
        found = [each.prefix_engine_ms for each in self.models or () if each.prefix_engine_ms is not None]
        return sum(found) if found or not self.total.prefix_tokens else None

    @property
    def engine_ms(self) -> int:
        """The engine time that both saved, as far as it is known."""
        return self.total.prediction_engine_ms + (self.prefix_engine_ms or 0)

    @property
    def unmeasured_models(self) -> tuple[str, ...]:
        """The models with cached tokens whose prefill was not measured."""
        return tuple(each.model_name for each in self.models or () if each.prefix_engine_ms is None)


def read(tenant: Tenant, year: int, month: int, project: Project | None = None) -> SavingsStatement:
    """Return the savings statement of a month: the frozen one if it is closed, else what requests say now.

    Raises ValueError for an invalid month, MixedCurrencies, and RequestsDeleted for a project some of whose requests
    are gone.
    """
    found = statements.statement(TenantId(tenant.id), year, month, project)
    return SavingsStatement(
        tenant_id=found.tenant_id,
        year=found.year,
        month=found.month,
        timezone=found.timezone,
        start=found.start,
        end=found.end,
        currency=found.currency,
        requests=found.requests,
        usage_pico=found.usage_pico,
        total=found.savings,
        models=found.model_savings,
        project=found.project,
        closed_at=found.closed_at,
        revision=found.revision,
    )


def rows(found: SavingsStatement) -> Iterator[Row]:
    """Yield a row per model and cache, in the order of models; rows of one cache add up to its total."""
    for each in found.models or ():
        yield from _rows(each.model_name, each, each.prefix_engine_ms)


def totals(found: SavingsStatement) -> tuple[Row, ...]:
    """Return the totals of each cache that saved anything, without a model."""
    return tuple(_rows("", found.total, found.prefix_engine_ms))


def csv_rows(found: SavingsStatement) -> Iterator[tuple[str, ...]]:
    """Yield the header, a row per model and cache, then the totals of each cache.

    Money is exact, in pico-units and in units of the currency.
    """
    yield CSV_HEADER
    for row in (*rows(found), *totals(found)):
        yield (
            row.model_name,
            row.cache,
            "" if row.requests is None else str(row.requests),
            str(row.tokens),
            str(row.pico),
            amounts.units(row.pico, found.currency),
            found.currency,
            "" if row.engine_ms is None else f"{row.engine_ms // 1000}.{row.engine_ms % 1000:03}",
            row.engine_time_is,
        )


def _rows(model_name: str, saved: ModelSavings | Savings, prefix_engine_ms: int | None) -> Iterator[Row]:
    if hits := saved.prediction_hits + saved.coalesced_requests:
        yield Row(
            model_name=model_name,
            cache="prediction",
            requests=hits,
            tokens=saved.prediction_tokens,
            pico=saved.prediction_pico,
            engine_ms=saved.prediction_engine_ms,
            engine_time_is="recorded",
        )
    if saved.prefix_tokens:
        yield Row(
            model_name=model_name,
            cache="prefix",
            requests=None,
            tokens=saved.prefix_tokens,
            pico=saved.prefix_pico,
            engine_ms=prefix_engine_ms,
            engine_time_is="not measured" if prefix_engine_ms is None else "estimated",
        )
