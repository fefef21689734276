"""Keep the Redis counters of hard budgets equal to what is stored. Runs in the drain's process, between batches.

At every moment, for each budget and period,

    counter = limit - stored charges - the tenant's holds on it, except those whose row is stored

because every gateway script changes a counter and its hold in one step (``gateway.admission.lua_scripts``), and a hold,
open or settled, stays until its row is stored. A round reads a tenant's holds and counters in one atomic step and
compares them. Every difference has the same remedy, a recount. Causes are: a counter that Redis lost, a new period or
budget, a changed limit, a row that was rated late, a hold whose gateway died, a row without a hold, and an entry in
Redis that no gateway wrote, which is removed. In a recount one script sets the counter to the limit minus stored
charges and subtracts every hold as it is at that instant. It runs under the lock that prevents batches from being
stored (``spending.exclude_batches``), so the stored charges do not change. Requests may start, extend their holds and
end before or after the script; the sums stay correct.

A round runs after the log was read to its end. The log then shows which requests of this host began and have not
ended: under a hard budget a START is written before the request waits for anything, and again with each extension.
Holds that Redis lost are restored before their counter exists, and nothing is admitted until a counter exists. This
host's log does not show the holds of other hosts' requests (their own reconcilers restore them within half a second),
nor what a stream was granted just now; both are subtracted as soon as their rows are stored.

A replica that became the primary, or a server that restarted, may have older counters, and lack the holds that belong
to them. So gateways take nothing from counters that were counted on another server. Each host's reconciler restores its
own holds there and reports it; the last one that does counts. One that was alive until then and does not report is not
waited for longer than PEER_SECONDS.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from django.db import transaction
from django.utils import timezone
from redis.exceptions import RedisError

from billing import metrics
from billing.budgets import announcing, spending
from billing.budgets.holds import counter_name, hold_value, holds_key
from billing.budgets.redis_counters import Account, BudgetCounters, Hold, Recount
from billing.budgets.spending import ActiveBudget, Window
from billing.ledger.usage_rows import moment_of
from billing.wal.records import Start
from tenants.ids import TenantId, milliseconds_of

logger = logging.getLogger(__name__)

ROUND_SECONDS = 0.25
#: The reconciler uses at most 1/TIME_SHARE of the drain's time.
TIME_SHARE = 5
#: A round runs after this long even if the log was not read to its end.
BEHIND_SECONDS = 5.0
#: For one reply of Redis; batches may have to wait for it.
TIMEOUT_SECONDS = 1.0
#: Pause between rounds while Redis is unavailable.
RETRY_SECONDS = 1.0
#: How long a period's counter is maintained after its end: a deferred request accepted in it may run a day later.
LINGER_SECONDS = 25 * 3600
#: An open hold without a START in this host's log is released when its request is this old and this reconciler has seen
#: it for this long: a deferred request may be a day old when it takes its hold. A gateway that dies between hold and
#: START leaves one. If a request of another host runs for longer, its charge is subtracted once its row is stored.
#: A settled hold is released LINGER_SECONDS after its request was accepted. It has no row if the attempt of a deferred
#: request was withdrawn; otherwise the row may still wait in the log of a host that is down.
ORPHANED_SECONDS = 3600
#: How long a host that reported until another server became the primary is waited for.
PEER_SECONDS = 10.0
#: Recounted in one transaction, during which no batch is stored.
TENANTS_AT_ONCE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counter:
    """One counter: a hard budget in one of its periods."""

    budget: ActiveBudget
    window: Window

    @property
    def name(self) -> str:
        return counter_name(self.budget.id, self.window.start)

    def expires(self, now: datetime) -> int:
        """Return the seconds until it is no longer needed; 0: never expires."""
        return 0 if self.window.end is None else self.window.end - int(now.timestamp()) + 2 * LINGER_SECONDS


@dataclass(slots=True)
class _Tenant:
    """The input of one tenant's counters."""

    counters: list[_Counter] = field(default_factory=list)
    #: Its requests that began on this host and have not ended, by id in hex.
    open: dict[str, Start] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [counter.name for counter in self.counters]

    def value(self, start: Start) -> str | None:
        """Return the value of a hold that Redis lost; None if none of these counters covers the request."""
        moment = moment_of(start.request_id)
        names = [
            counter.name
            for counter in self.counters
            if counter.budget.covers(start.project_id, start.key_id, start.model_name)
            and counter.budget.window(moment).start == counter.window.start
        ]
        return hold_value(start.held_pico, names) if names else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observed:
    """A tenant's state at one moment: its account in Redis and the matching database rows."""

    account: Account
    #: Holds whose row is stored.
    stored: frozenset[str]
    #: Open holds that no process will end, and settled ones that no row will replace.
    orphaned: frozenset[str]
    #: Limit minus stored charges, by counter.
    before_holds: Mapping[str, int]

    def agrees(self) -> bool:
        """Return whether every counter is correct and no hold has to be removed."""
        open_stored = any(not self.account.holds[name].settled for name in self.stored)
        return (
            self.account.current
            and not (open_stored or self.orphaned or self.account.malformed)
            and all(
                self.account.left[name] == pico - self.account.held(name, without=self.stored)
                for name, pico in self.before_holds.items()
            )
        )


class BudgetReconciler:
    """One per drain. ``open_starts`` returns the STARTs in this host's log whose END is not stored."""

    def __init__(self, counters: BudgetCounters, open_starts: Callable[[], Iterable[Start]], *, host: str = "") -> None:
        """``host`` names this log among those of other hosts."""
        self._counters = counters
        self._host = host
        self._server = ""
        #: When this reconciler first saw that server, monotonic seconds.
        self._server_since = 0.0
        #: The hosts that reported until shortly before that.
        self._awaited: frozenset[str] = frozenset()
        #: What recounts record: the server, once every host has restored its holds there.
        self._counted_on = ""
        self._open_starts = open_starts
        self._due = 0.0
        #: How long the last round took; None before the first.
        self._took: float | None = None
        self._redis_failed = False
        #: Open requests of this host without a hold in Redis, in this round and in the last. If the log was read to its
        #: end in between, a request in both is not merely about to end.
        self._missing: set[str] = set()
        self._missed: frozenset[str] = frozenset()
        #: When it first saw each old hold that no request in this host's log explains, Unix seconds.
        self._first_seen: dict[str, float] = {}
        self._unexplained: set[str] = set()

    @property
    def due_at(self) -> float:
        """When the next round is due, time.monotonic()."""
        return self._due

    def run_if_due(self, *, caught_up: bool) -> None:
        """Run a round if one is due. ``caught_up``: the log was read to its end. Raises django.db.Error.

        If Redis is unavailable, the round is retried later.
        """
        began = time.monotonic()
        if began < self._due + (0.0 if caught_up else BEHIND_SECONDS):
            return
        if not caught_up:
            self._missed = frozenset()
        try:
            self.round(timezone.now())
        except RedisError as error:
            if not self._redis_failed:
                logger.warning("budgets are not reconciled while Redis is unavailable: %s", error)
            self._redis_failed, self._due = True, time.monotonic() + RETRY_SECONDS
            return
        self._redis_failed = False
        took = time.monotonic() - began
        # One long round was a stall of the database, which must not be followed by a pause of several times its length.
        usual = min(took, self._took) if self._took is not None else 0.0
        self._took = took
        self._due = time.monotonic() + max(ROUND_SECONDS, (TIME_SHARE - 1) * usual)

    def round(self, now: datetime) -> None:
        """Open periods, raise alerts, and recount where a counter is wrong. Idempotent.

        Raises RedisError, django.db.Error; the next round then does the rest.
        """
        windows = [(each, window) for each in spending.active_budgets() for window in _windows(each, now)]
        spending.open_windows(windows)
        spending.raise_alerts(windows)
        announcing.announce(windows, now)
        tenants = self._tenants([pair for pair in windows if pair[0].hard])
        self._missing = set()
        self._unexplained = set()
        server = self._follow_server()
        ids = list(tenants)
        for first in range(0, len(ids), TENANTS_AT_ONCE):
            self._reconcile({tenant_id: tenants[tenant_id] for tenant_id in ids[first : first + TENANTS_AT_ONCE]}, now)
        self._counters.report(self._host, server, time.time())
        self._missed = frozenset(self._missing)
        self._first_seen = {name: at for name, at in self._first_seen.items() if name in self._unexplained}

    def _follow_server(self) -> str:
        """Return the server, and find out whether every host has restored its holds there."""
        server, reports = self._counters.server(), self._counters.reports()
        elsewhere = {host: at for host, (on, at) in reports.items() if on != server}
        if server != self._server:
            self._server, self._server_since = server, time.monotonic()
            alive = max(elsewhere.values(), default=0.0) - PEER_SECONDS
            self._awaited = frozenset(host for host, at in elsewhere.items() if at > alive and host != self._host)
        patient = time.monotonic() < self._server_since + PEER_SECONDS
        self._counted_on = "" if patient and self._awaited & elsewhere.keys() else server
        return server

    def _tenants(self, windows: Sequence[tuple[ActiveBudget, Window]]) -> dict[TenantId, _Tenant]:
        tenants: dict[TenantId, _Tenant] = {}
        for each, window in windows:
            own = tenants.setdefault(TenantId(each.tenant_id), _Tenant())
            own.counters.append(_Counter(budget=each, window=window))
        for start in self._open_starts():
            if start.held_pico and (tenant := tenants.get(start.tenant_id)) is not None:
                tenant.open[start.request_id.hex] = start
        return tenants

    def _reconcile(self, tenants: Mapping[TenantId, _Tenant], now: datetime) -> None:
        wrong: dict[TenantId, _Tenant] = {}
        settled: dict[TenantId, frozenset[str]] = {}
        for tenant_id, observed in self._observe(tenants, now).items():
            tenant = tenants[tenant_id]
            missing = tenant.open.keys() - observed.account.holds.keys()
            self._missing |= missing
            if not observed.agrees() or missing & self._missed:
                wrong[tenant_id] = tenant
            elif observed.stored:
                settled[tenant_id] = observed.stored
        if settled:
            self._counters.forget(settled)
        if wrong:
            self._recount(wrong, now)

    def _recount(self, tenants: Mapping[TenantId, _Tenant], now: datetime) -> None:
        with transaction.atomic():
            spending.exclude_batches()
            recounts = {}
            for tenant_id, observed in self._observe(tenants, now).items():
                tenant, account = tenants[tenant_id], observed.account
                missing = tenant.open.keys() - account.holds.keys()
                # While a counter does not exist yet, one hold too many is better than one too few.
                all_missing = None in account.left.values() or not account.current
                lost = missing if all_missing else missing & (self._missed | account.malformed)
                recounts[tenant_id] = Recount(
                    before_holds=observed.before_holds,
                    counted_on=self._counted_on,
                    expires={counter.name: counter.expires(now) for counter in tenant.counters},
                    removed=observed.stored | observed.orphaned | account.malformed,
                    added={name: value for name in lost if (value := tenant.value(tenant.open[name])) is not None},
                )
                _log_malformed(tenant_id, account)
            self._counters.recount(recounts)
        metrics.BUDGET_RECOUNTS.inc(len(recounts))

    def _observe(self, tenants: Mapping[TenantId, _Tenant], now: datetime) -> dict[TenantId, _Observed]:
        accounts = self._counters.read({tenant_id: tenant.names for tenant_id, tenant in tenants.items()})
        # After reading Redis: the holds must not be newer than the stored rows and charges.
        stored = spending.stored_requests(name for account in accounts.values() for name in account.holds)
        spent = spending.spent(counter.window for tenant in tenants.values() for counter in tenant.counters)
        return {
            tenant_id: _Observed(
                account=account,
                stored=frozenset(name for name in account.holds if name in stored),
                orphaned=frozenset(
                    name
                    for name, hold in account.holds.items()
                    if name not in stored
                    and name not in tenants[tenant_id].open
                    and self._is_orphaned(name, hold, now.timestamp())
                ),
                before_holds={
                    counter.name: counter.budget.limit_pico - spent.get((counter.budget.id, counter.window.start), 0)
                    for counter in tenants[tenant_id].counters
                },
            )
            for tenant_id, account in accounts.items()
        }

    def _is_orphaned(self, name: str, hold: Hold, now: float) -> bool:
        """Return whether an unexplained hold is given up."""
        if _made_at(name) >= now - (LINGER_SECONDS if hold.settled else ORPHANED_SECONDS):
            return False
        self._unexplained.add(name)
        return self._first_seen.setdefault(name, now) <= now - ORPHANED_SECONDS


def _windows(each: ActiveBudget, now: datetime) -> Iterator[Window]:
    """Yield the running period, the next one, and the previous one while its requests may still run."""
    running = each.window(now)
    yield running
    if running.end is None:
        return
    yield each.window(datetime.fromtimestamp(running.end, tz=UTC))
    if now.timestamp() < running.start + LINGER_SECONDS:
        yield each.window(datetime.fromtimestamp(running.start - 1, tz=UTC))


def _log_malformed(tenant_id: TenantId, account: Account) -> None:
    if account.malformed:
        logger.warning(
            "removing %d entries of %s that are no holds, such as %.80r: no gateway writes them",
            len(account.malformed),
            holds_key(tenant_id),
            min(account.malformed),
        )


def _made_at(name: str) -> float:
    """Return when the request was accepted, Unix seconds; infinity for a name that is not a request's."""
    request_id = spending.request_of(name)
    return math.inf if request_id is None else milliseconds_of(request_id) / 1000
