"""Compare what clients saw with the usage rows, the ledger, the roll-ups, the budget and the engines' counters."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import redis
from psycopg.rows import class_row

from tests.chaos.clients import Outcome
from tests.chaos.world import PRICE, TENANTS, World, until

#: Longest time until everything that ended is stored and every hold is settled.
SETTLED_SECONDS = 90
#: The purpose of the row of an attempt whose request ran again.
RETRY = "retry"
UNPRICED = ("refused", "engine_error")


@dataclass(frozen=True, slots=True)
class Row:
    """A stored request of the tenants, without those that only count refusals."""

    id: str
    tenant: str
    client_id: str
    purpose: str
    source_id: str | None
    state: str
    cache_result: str
    tokens_source: str
    replica_id: str | None
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    avoided_tokens: int
    amount_pico: int | None

    @property
    def tokens(self) -> tuple[int, int, int]:
        return self.prompt_tokens, self.cached_prompt_tokens, self.completion_tokens

    @property
    def priced_pico(self) -> int:
        """The price of what the row says, computed apart from Hearth's code."""
        if self.cache_result == "hit":
            return PRICE["prediction_hit_pico"]
        if self.cache_result == "coalesced":
            return PRICE["coalesced_pico"]
        per_token = (PRICE["prompt_pico"], PRICE["cached_prompt_pico"], PRICE["completion_pico"])
        own = PRICE["request_pico"] if any(self.tokens) else 0
        return own + sum(count * price for count, price in zip(self.tokens, per_token, strict=True))


def audit(world: World, outcomes: Iterable[Outcome]) -> list[str]:
    """Return every difference, as sentences; empty when all agrees. Nothing may be running."""
    asked = {each.client_id: each for each in outcomes}
    expected = {each.client_id for each in asked.values() if each.whole}
    until(lambda: _is_stored(world, expected), SETTLED_SECONDS)
    with world.database() as connection:
        # What is stored meanwhile, as of an answer whose client did not wait for it, changes all sums or none.
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        rows = _rows(connection)
        found = [
            *_answers(asked, rows),
            *_retries(connection, rows),
            *_amounts(rows),
            *_ledger(connection, rows),
            *_rollups(connection, rows),
        ]
        found += _budget(connection, rows)
    return [*found, *_holds(world, rows), *_processes(world)]


def _is_stored(world: World, expected: set[str]) -> bool:
    with contextlib.suppress(psycopg.Error), world.database() as connection:
        return expected <= {row.client_id for row in _rows(connection) if row.state == "complete"}
    return False


def _rows(connection: psycopg.Connection[Any]) -> list[Row]:
    with connection.cursor(row_factory=class_row(Row)) as cursor:
        return cursor.execute(
            """
            SELECT usage.id::text, tenant.slug AS tenant, client_request_id AS client_id, purpose,
                   source_id::text, usage.state, cache_result, tokens_source, replica_id::text, prompt_tokens,
                   cached_prompt_tokens, completion_tokens,
                   avoided_prompt_tokens + avoided_cached_prompt_tokens + avoided_completion_tokens AS avoided_tokens,
                   amount_pico
            FROM billing_usagerecord usage JOIN tenants_tenant tenant ON tenant.id = usage.tenant_id
            WHERE tenant.slug = ANY(%s) AND refusals = 0
            """,
            [list(TENANTS)],
        ).fetchall()


def _answers(asked: Mapping[str, Outcome], rows: list[Row]) -> Iterator[str]:
    """Compare each client's request with its rows: one of an answer, none that nobody asked for, the same tokens."""
    by_client = defaultdict(list)
    for row in rows:
        if row.purpose != RETRY:
            by_client[row.client_id].append(row)
    for client_id in by_client.keys() - asked.keys():
        yield f"{client_id}: a row that nobody asked for"
    for client_id, each in asked.items():
        complete = [row for row in by_client[client_id] if row.state == "complete"]
        if len(complete) > 1:
            yield f"{client_id}: {len(complete)} rows of complete requests"
        if each.tenant != (index := next((TENANTS.index(row.tenant) for row in complete), each.tenant)):
            yield f"{client_id}: charged to {TENANTS[index]}"
        if each.whole and not complete:
            states = sorted(row.state for row in by_client[client_id])
            yield f"{client_id}: answered ({each.status}, {each.cache}) and stored as {states or 'nothing'}"
        elif each.whole and each.tokens and not each.earlier:
            yield from _told(each, complete[0])
        if each.accepted and each.error == "not answered":
            yield f"{client_id}: a deferred request that was accepted is not answered"
        if each.kind == "deferred" and not each.accepted and each.status >= 400 and complete:
            yield f"{client_id}: refused with {each.status} {each.error}, and run"
        if each.kind == "idempotent" and not each.whole:
            yield f"{client_id}: never answered under its Idempotency-Key: {each.status} {each.error}"
        if each.status == 500:
            yield f"{client_id}: HTTP 500 {each.error}"


def _retries(connection: psycopg.Connection[Any], rows: list[Row]) -> Iterator[str]:
    """An attempt that broke off belongs to a request of its tenant and costs nothing.

    A deferred request has no row of its own before it has ended, nor if it was refused when it ran again.
    """
    deferred = connection.execute(
        "SELECT request.id::text, tenant.slug FROM workers_deferredrequest request"
        " JOIN tenants_tenant tenant ON tenant.id = request.tenant_id"
    ).fetchall()
    tenants = dict(deferred) | {row.id: row.tenant for row in rows if row.purpose != RETRY}
    for row in rows:
        if row.purpose == RETRY and (tenants.get(row.source_id or "") != row.tenant or row.amount_pico != 0):
            yield f"an attempt of no request, or with a price: {row}"


def _told(each: Outcome, row: Row) -> Iterator[str]:
    assert each.tokens is not None
    if each.cache in ("hit", "coalesced"):
        if row.avoided_tokens != sum(each.tokens):
            yield f"{each.client_id}: told {each.tokens}, stored {row.avoided_tokens} avoided tokens"
    elif row.tokens != each.tokens:
        yield f"{each.client_id}: told {each.tokens}, stored {row.tokens}"
    if row.cache_result != each.cache:
        yield f"{each.client_id}: told {each.cache}, stored {row.cache_result}"


def _amounts(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        if row.amount_pico is None:
            yield f"{row.client_id}: not rated"
        elif row.state == "complete" and row.amount_pico != row.priced_pico:
            yield f"{row.client_id}: {row.amount_pico} charged, {row.priced_pico} is its price"
        elif row.state in UNPRICED and row.amount_pico > row.priced_pico:
            yield f"{row.client_id}: {row.state}, {row.amount_pico} charged, above its price {row.priced_pico}"


def _ledger(connection: psycopg.Connection[Any], rows: list[Row]) -> Iterator[str]:
    posted = connection.execute(
        "SELECT usage_id::text, count(*) FROM billing_ledgertransaction, unnest(usage_ids) AS usage_id GROUP BY 1"
    ).fetchall()
    times = {str(usage_id): int(count) for usage_id, count in posted}
    for row in rows:
        if row.amount_pico and times.get(row.id, 0) != 1:
            yield f"{row.client_id}: posted to the ledger {times.get(row.id, 0)} times"
    balances = dict(
        connection.execute(
            """
            SELECT tenant.slug, sum(entry.amount_pico)::numeric FROM billing_ledgerentry entry
            JOIN billing_ledgeraccount account ON account.id = entry.account_id
            JOIN tenants_tenant tenant ON tenant.id = account.tenant_id
            WHERE account.kind = 'receivable' GROUP BY 1
            """
        ).fetchall()
    )
    for tenant in TENANTS:
        charged = sum(row.amount_pico or 0 for row in rows if row.tenant == tenant)
        if int(balances.get(tenant, 0)) != charged:
            yield f"{tenant}: ledger {balances.get(tenant, 0)}, rows {charged}"


def _rollups(connection: psycopg.Connection[Any], rows: list[Row]) -> Iterator[str]:
    found = connection.execute(
        """
        SELECT tenant.slug, sum(prompt_tokens)::bigint, sum(cached_prompt_tokens)::bigint,
               sum(completion_tokens)::bigint, sum(amount_pico)::numeric
        FROM billing_usagerollup rollup JOIN tenants_tenant tenant ON tenant.id = rollup.tenant_id GROUP BY 1
        """
    ).fetchall()
    sums = {str(slug): tuple(map(int, values)) for slug, *values in found}
    for tenant in TENANTS:
        theirs = [row for row in rows if row.tenant == tenant]
        expected = (
            *(sum(column) for column in zip(*(row.tokens for row in theirs), strict=True)),
            sum(row.amount_pico or 0 for row in theirs),
        )
        if theirs and sums.get(tenant) != expected:
            yield f"{tenant}: roll-ups {sums.get(tenant)}, rows {expected}"


def _budget(connection: psycopg.Connection[Any], rows: list[Row]) -> Iterator[str]:
    found = connection.execute(
        "SELECT coalesce(sum(spent_pico), 0) FROM billing_budgetwindow budget"
        " JOIN tenants_tenant tenant ON tenant.id = budget.tenant_id WHERE tenant.slug = %s",
        [TENANTS[0]],
    ).fetchone()
    assert found is not None
    charged = sum(row.amount_pico or 0 for row in rows if row.tenant == TENANTS[0])
    if int(found[0]) != charged:
        yield f"{TENANTS[0]}: budget window {found[0]}, rows {charged}"


def _holds(world: World, rows: list[Row]) -> Iterator[str]:
    """No stored request holds anything. What gateways have set aside for a time without Redis is no request's."""
    by_hold = {row.id.replace("-", "").encode(): row for row in rows}
    held: set[bytes] = set()

    def settled() -> bool:
        held.clear()
        with contextlib.suppress(redis.RedisError):
            client = world.redis()
            for key in client.scan_iter("hearth:{*}:holds:"):
                held.update(each if isinstance(each, bytes) else each.encode() for each in client.hkeys(key))
            return not held & by_hold.keys()
        return False

    if not until(settled, SETTLED_SECONDS):
        yield from (f"{by_hold[each].client_id}: stored, and its hold is open" for each in held & by_hold.keys())


def _processes(world: World) -> Iterator[str]:
    if not until(lambda: not world.strays(), 30):
        yield from (f"left over: {line[:160]}" for line in world.strays())


@dataclass(frozen=True, slots=True)
class Boot:
    """One life of an engine's process: the tokens it counted, and those of the rows that name it."""

    replica_id: str
    counted: int
    stored: int


def boots(world: World) -> list[Boot]:
    """Return the running engines' completion tokens, counted and stored. The clock must be the machine's."""
    found = []
    with world.database() as connection:
        for engine in world.engines():
            began = engine.counter("process_start_time_seconds")
            stored = connection.execute(
                """
                SELECT coalesce(sum(completion_tokens), 0) FROM billing_usagerecord
                WHERE replica_id = %s AND started_at >= to_timestamp(%s) AND tokens_source IN ('engine', 'streamed')
                """,
                [engine.replica_id, began],
            ).fetchone()
            assert stored is not None
            counted = int(engine.counter("vllm:generation_tokens_total"))
            found.append(Boot(engine.replica_id, counted, int(stored[0])))
    return found


def more_stored_than_counted(found: Iterable[Boot]) -> list[str]:
    """Return the engines whose rows have more tokens than they counted."""
    return [f"engine {each.replica_id}: {each}" for each in found if each.stored > each.counted]
