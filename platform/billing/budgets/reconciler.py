"""Keep the counters of hard budgets in Redis equal to what is stored. Runs in the drain's process, between its batches.

At every moment, for each budget and period,

    counter = limit - stored charges - what the tenant's holds have of it, without those whose row is stored

because each script of a gateway changes a counter and its hold in one step (``gateway.admission.lua_scripts``), and a
hold, open or settled, stays until its row is stored. A round reads holds and counters of a tenant in one atomic step
and compares. Whatever makes them differ - a counter that is missing because Redis lost it or the period or the budget
is new, a limit that was changed, a row that was rated late, a hold whose gateway died, a row that no hold announced -
is answered by the same act: counting anew. One script then sets the counter to limit less stored charges and takes off
every hold as it is at that instant. It runs under the lock that keeps batches from being stored
(``spending.exclude_batches``), so what is stored stands still; requests may come, grow and end before or after the
script, and what they do adds up.

A round comes after the log was read to its end. The log then says which requests of this host began and have not
ended: under a hard budget a START is written before it waits for anything, and again with each extension. Those that
Redis lost are held again before their counter exists, and until a counter exists nothing is admitted. What this host's
log cannot say - what requests of other hosts hold, for the half second until their own keeper has told, and what a
stream was granted just now - is taken off as soon as its row is stored.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from django.db import transaction
from django.utils import timezone
from redis.exceptions import RedisError

from billing import metrics
from billing.budgets import spending
from billing.budgets.holds import counter_name, hold_value
from billing.budgets.redis_counters import Account, BudgetCounters, Recount
from billing.budgets.spending import ActiveBudget, Window
from billing.ledger.usage_rows import moment_of
from billing.models import UsageRecord
from billing.wal.records import Start
from tenants.ids import TenantId, created_at

logger = logging.getLogger(__name__)

ROUND_SECONDS = 0.25
#: Of its time the drain gives the keeper no more than one part in so many.
TIME_SHARE = 5
#: After so long a round comes although the log is not read to its end.
BEHIND_SECONDS = 5.0
#: For one answer of Redis, which batches may have to wait for.
TIMEOUT_SECONDS = 1.0
#: While Redis is away.
RETRY_SECONDS = 2.0
#: How long a period's counter is looked after once it is over: requests that began in it may still run.
LINGER_SECONDS = 3600
#: An open hold without a START in this host's log is given back when its request is so old: a gateway that dies between
#: the two leaves one, and a request of another host that runs for longer is taken off once its row is stored.
ORPHANED_SECONDS = 3600
#: Counted anew in one transaction, while which no batch is stored.
TENANTS_AT_ONCE = 200
#: Ids in one question to the database.
IDS_AT_ONCE = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counter:
    """One counter: a hard budget in one of its periods."""

    bound: ActiveBudget
    window: Window

    @property
    def name(self) -> str:
        return counter_name(self.bound.id, self.window.start)

    def expires(self, now: datetime) -> int:
        """Return after how many seconds nobody asks for it any more; 0 for never."""
        return 0 if self.window.end is None else self.window.end - int(now.timestamp()) + 2 * LINGER_SECONDS


@dataclass(slots=True)
class _Tenant:
    """What one tenant's counters are made of."""

    counters: list[_Counter] = field(default_factory=list)
    #: Its requests that began on this host and have not ended.
    open: dict[str, Start] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [counter.name for counter in self.counters]

    def value(self, start: Start) -> str | None:
        """Return the hold of a request that Redis lost; None where no counter here is for it."""
        moment = moment_of(start.request_id)
        names = [
            counter.name
            for counter in self.counters
            if counter.bound.covers(start.project_id, start.key_id, start.model_name)
            and counter.bound.window(moment).start == counter.window.start
        ]
        return hold_value(start.held_pico, names) if names else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observed:
    """A tenant as one look found it: its account in Redis, and what of it the database has."""

    account: Account
    #: Holds whose row is stored.
    stored: frozenset[str]
    #: Open holds that nobody will ever end.
    orphaned: frozenset[str]
    #: Limit less what is stored, by counter.
    before_holds: Mapping[str, int]

    def agrees(self) -> bool:
        """Say whether every counter is what it should be, and no hold needs to be ended."""
        open_stored = any(not self.account.holds[name].settled for name in self.stored)
        return not (open_stored or self.orphaned) and all(
            self.account.left[name] == pico - self.account.held(name, without=self.stored)
            for name, pico in self.before_holds.items()
        )


class BudgetReconciler:
    """One per drain. ``open_starts`` returns the STARTs in this host's log whose END is not stored."""

    def __init__(self, counters: BudgetCounters, open_starts: Callable[[], Iterable[Start]]) -> None:
        self._counters = counters
        self._open_starts = open_starts
        self._due = 0.0
        self._away = False
        #: Open requests of this host that Redis had nothing of in this round and the last: if the log was read to its
        #: end in between, they are not just about to end.
        self._missing: set[str] = set()
        self._missed: frozenset[str] = frozenset()

    def run_if_due(self, *, caught_up: bool) -> None:
        """Do a round if one is due; ``caught_up`` says that the log was read to its end. Raises django.db.Error.

        Redis that is away is left for later.
        """
        began = time.monotonic()
        if began < self._due + (0.0 if caught_up else BEHIND_SECONDS):
            return
        if not caught_up:
            self._missed = frozenset()
        try:
            self.round(timezone.now())
        except RedisError as error:
            if not self._away:
                logger.warning("budgets are not kept while Redis does not answer: %s", error)
            self._away, self._due = True, time.monotonic() + RETRY_SECONDS
            return
        self._away = False
        took = time.monotonic() - began
        self._due = time.monotonic() + max(ROUND_SECONDS, (TIME_SHARE - 1) * took)

    def round(self, now: datetime) -> None:
        """Open periods, raise alerts, and count anew where a counter is not what it should be. Idempotent.

        Raises RedisError, django.db.Error; the next round then does what is left.
        """
        windows = [(each, window) for each in spending.active_budgets() for window in _windows(each, now)]
        spending.open_windows(windows)
        spending.raise_alerts(windows)
        tenants = self._tenants([pair for pair in windows if pair[0].hard])
        self._missing = set()
        ids = list(tenants)
        for first in range(0, len(ids), TENANTS_AT_ONCE):
            self._reconcile({tenant_id: tenants[tenant_id] for tenant_id in ids[first : first + TENANTS_AT_ONCE]}, now)
        self._missed = frozenset(self._missing)

    def _tenants(self, windows: Sequence[tuple[ActiveBudget, Window]]) -> dict[TenantId, _Tenant]:
        tenants: dict[TenantId, _Tenant] = {}
        for each, window in windows:
            own = tenants.setdefault(TenantId(each.tenant_id), _Tenant())
            own.counters.append(_Counter(bound=each, window=window))
        for start in self._open_starts():
            if start.held_pico and (tenant := tenants.get(start.tenant_id)) is not None:
                tenant.open[start.request_id.hex] = start
        return tenants

    def _reconcile(self, tenants: Mapping[TenantId, _Tenant], now: datetime) -> None:
        wrong: dict[TenantId, _Tenant] = {}
        settled: dict[TenantId, frozenset[str]] = {}
        for tenant_id, sight in self._observe(tenants, now).items():
            tenant = tenants[tenant_id]
            missing = tenant.open.keys() - sight.account.holds.keys()
            self._missing |= missing
            if not sight.agrees() or missing & self._missed:
                wrong[tenant_id] = tenant
            elif sight.stored:
                settled[tenant_id] = sight.stored
        if settled:
            self._counters.forget(settled)
        if wrong:
            self._recount(wrong, now)

    def _recount(self, tenants: Mapping[TenantId, _Tenant], now: datetime) -> None:
        with transaction.atomic():
            spending.exclude_batches()
            recounts = {}
            for tenant_id, sight in self._observe(tenants, now).items():
                tenant, account = tenants[tenant_id], sight.account
                missing = tenant.open.keys() - account.holds.keys()
                # Where a counter is not there yet, a hold too many for a moment is better than one too few.
                lost = missing if None in account.left.values() else missing & self._missed
                recounts[tenant_id] = Recount(
                    before_holds=sight.before_holds,
                    expires={counter.name: counter.expires(now) for counter in tenant.counters},
                    removed=sight.stored | sight.orphaned,
                    added={name: value for name in lost if (value := tenant.value(tenant.open[name])) is not None},
                )
            self._counters.recount(recounts)
        metrics.BUDGET_RECOUNTS.inc(len(recounts))

    def _observe(self, tenants: Mapping[TenantId, _Tenant], now: datetime) -> dict[TenantId, _Observed]:
        accounts = self._counters.read({tenant_id: tenant.names for tenant_id, tenant in tenants.items()})
        # Only now: a row that is stored and a charge that is counted must not be newer than the holds.
        stored = _stored(name for account in accounts.values() for name in account.holds)
        spent = spending.spent(counter.window for tenant in tenants.values() for counter in tenant.counters)
        oldest = now.timestamp() - ORPHANED_SECONDS
        return {
            tenant_id: _Observed(
                account=account,
                stored=frozenset(name for name in account.holds if name in stored),
                orphaned=frozenset(
                    name
                    for name, hold in account.holds.items()
                    if not hold.settled
                    and name not in stored
                    and name not in tenants[tenant_id].open
                    and _made_at(name) < oldest
                ),
                before_holds={
                    counter.name: counter.bound.limit_pico - spent.get((counter.bound.id, counter.window.start), 0)
                    for counter in tenants[tenant_id].counters
                },
            )
            for tenant_id, account in accounts.items()
        }


def _windows(each: ActiveBudget, now: datetime) -> Iterator[Window]:
    """Yield the period that runs, the one after it, and the one before it while requests of it may still run."""
    running = each.window(now)
    yield running
    if running.end is None:
        return
    yield each.window(datetime.fromtimestamp(running.end, tz=UTC))
    if now.timestamp() < running.start + LINGER_SECONDS:
        yield each.window(datetime.fromtimestamp(running.start - 1, tz=UTC))


def _stored(names: Iterable[str]) -> frozenset[str]:
    """Return those of these requests, named in hex, whose rows are stored."""
    ids = [request_id for name in names if (request_id := _request_id(name)) is not None]
    return frozenset(
        found.hex
        for first in range(0, len(ids), IDS_AT_ONCE)
        for found in UsageRecord.objects.filter(id__in=ids[first : first + IDS_AT_ONCE]).values_list("id", flat=True)
    )


def _made_at(name: str) -> float:
    """Return when the request was made, Unix seconds; of what is no request, that it never gets old."""
    request_id = _request_id(name)
    return math.inf if request_id is None else created_at(request_id).timestamp()


def _request_id(name: str) -> UUID | None:
    """Return a hold's request; None for what is none: a gateway may hold a sum in advance under a name of its own."""
    try:
        found = UUID(hex=name)
    except ValueError:
        return None
    return found if found.version == 7 else None
