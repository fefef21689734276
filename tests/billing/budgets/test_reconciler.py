"""Counters of hard budgets in a real Redis: limit minus stored charges minus holds, whatever happened."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import pytest
from django.utils import timezone
from redis import Redis

from billing.budgets import redis_counters, spending
from billing.budgets.holds import COUNTED_ON, SETTLE, counter_name, counter_prefix, hold_value, holds_key
from billing.budgets.reconciler import LINGER_SECONDS, ORPHANED_SECONDS, BudgetReconciler
from billing.budgets.redis_counters import BudgetCounters
from billing.drain.batch import rate_unrated
from billing.ledger.usage_rows import UsageRow, interrupted
from billing.models import BudgetWindow
from billing.pricing.prices import DEMO_RATES
from billing.wal.records import Progress, Start
from tenants.ids import TenantId
from tenants.models import Budget
from tenants.policy import budgets
from tests.billing.budget_fixture import DAY, HOUR, NOON, begun, budget, row
from tests.billing.drain.test_drain import AMOUNT_PICO, INTERRUPTED_PICO
from tests.billing.usage_records import price_from, store
from tests.tenants import customers
from tests.tenants.customers import OPERATOR, Customer

pytestmark = pytest.mark.django_db
LIMIT_PICO = 10**12


@pytest.fixture
def acme(db: None) -> Customer:
    """A tenant whose model has a price from long before the test."""
    price_from(NOON - 400 * DAY, DEMO_RATES)
    return customers.create("acme")


class Desk:
    """A reconciler, the log that it reads, and a gateway's operations on a tenant's holds."""

    def __init__(self, redis: Redis, customer: Customer) -> None:
        self.redis = redis
        self.tenant_id = TenantId(customer.tenant.id)
        self.open: list[Start] = []
        self.connect()

    def connect(self) -> None:
        """Begin with a reconciler that has seen no server yet."""
        self.reconciler = BudgetReconciler(
            BudgetCounters(os.environ["REDIS_URL"], timeout_seconds=5), lambda: self.open
        )

    def key(self, made: Budget, now: datetime = NOON) -> str:
        """Return the key of the budget's counter."""
        return f"{counter_prefix(self.tenant_id)}{self.name(made, now)}"

    def name(self, made: Budget, now: datetime = NOON) -> str:
        """Return the counter's name within its tenant."""
        return counter_name(made.id, spending.resolve(Budget.objects.get(id=made.id)).window(now).start)

    def left(self, made: Budget, now: datetime = NOON) -> int | None:
        """Return the amount left of the budget in Redis."""
        value = self.redis.get(self.key(made, now))
        return None if value is None else int(value)

    def holds(self) -> dict[str, str]:
        """Return the tenant's holds."""
        return {str(name): str(value) for name, value in self.redis.hgetall(holds_key(self.tenant_id)).items()}

    def hold(self, request: Start | UsageRow, pico: int, *made: Budget) -> None:
        """Hold money as a gateway does: in each counter and in the hash."""
        identity = request.request_id if isinstance(request, Start) else request.id
        for each in made:
            self.redis.decrby(self.key(each), pico)
        self.redis.hset(holds_key(self.tenant_id), identity.hex, hold_value(pico, map(self.name, made)))

    def settle(self, request: UsageRow, pico: int) -> None:
        """Settle a hold as a gateway does."""
        self.redis.eval(SETTLE, 1, holds_key(self.tenant_id), counter_prefix(self.tenant_id), request.id.hex, str(pico))

    def round(self, now: datetime = NOON) -> None:
        """Run a round of the reconciler."""
        self.reconciler.round(now)


@pytest.fixture
def redis() -> Iterator[Redis]:
    """The session's Redis, emptied."""
    with Redis.from_url(os.environ["REDIS_URL"], decode_responses=True) as client:
        client.flushdb()
        yield client
        client.flushdb()


@pytest.fixture
def desk(redis: Redis, acme: Customer) -> Desk:
    return Desk(redis, acme)


def test_a_counter_is_built_from_what_is_stored_and_the_next_period_beforehand(desk: Desk, acme: Customer) -> None:
    store(row(acme, NOON - HOUR), row(acme, NOON - 40 * DAY))
    month, day = budget(acme.tenant, LIMIT_PICO), budget(acme.tenant, LIMIT_PICO, period="day", key=acme.key)
    total = budget(acme.tenant, LIMIT_PICO, period="total")
    soft = budget(acme.tenant, LIMIT_PICO, period="week", action="alert")
    assert desk.left(month) is None
    desk.round()
    assert [desk.left(month), desk.left(day), desk.left(total)] == [
        LIMIT_PICO - AMOUNT_PICO,
        LIMIT_PICO - AMOUNT_PICO,
        LIMIT_PICO - 2 * AMOUNT_PICO,
    ]
    assert desk.left(day, NOON + DAY) == LIMIT_PICO
    assert desk.left(soft) is None, "a soft budget refuses nothing, so that nobody asks for a counter"
    assert desk.redis.ttl(desk.key(total)) == -1
    assert 0 < desk.redis.ttl(desk.key(day)) <= 12 * HOUR.total_seconds() + 2 * LINGER_SECONDS


def test_a_settled_hold_waits_for_its_row_and_goes_with_it(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    desk.round()
    request = row(acme, NOON)
    desk.hold(request, 10 * AMOUNT_PICO, made)
    assert desk.left(made) == LIMIT_PICO - 10 * AMOUNT_PICO
    desk.settle(request, AMOUNT_PICO)
    desk.settle(request, 0)
    desk.round()
    assert desk.left(made) == LIMIT_PICO - AMOUNT_PICO
    assert list(desk.holds()) == [request.id.hex], "its row is not stored"
    store(request)
    desk.round()
    assert desk.left(made) == LIMIT_PICO - AMOUNT_PICO
    assert desk.holds() == {}


def test_the_hold_of_a_gateway_that_died_is_settled_with_its_row(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    desk.round()
    left = begun(acme, NOON, 10 * AMOUNT_PICO)
    desk.hold(left, left.held_pico, made)
    desk.open = [left]
    desk.round()
    assert desk.left(made) == LIMIT_PICO - left.held_pico
    desk.open = []
    told = Progress(request_id=left.request_id, completion_tokens=5, at_ns=left.started_at_ns)
    store(interrupted(left, told))
    desk.round()
    assert desk.holds() == {}
    assert desk.left(made) == LIMIT_PICO - INTERRUPTED_PICO


@pytest.mark.parametrize("limit_pico", [LIMIT_PICO // 2, 3 * LIMIT_PICO, AMOUNT_PICO, 0])
def test_a_changed_limit_moves_what_is_left_by_as_much(desk: Desk, acme: Customer, limit_pico: int) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    store(row(acme, NOON))
    desk.round()
    desk.hold(row(acme, NOON), 5, made)
    budgets.change(OPERATOR, made, limit_pico=limit_pico)
    desk.round()
    assert desk.left(made) == limit_pico - AMOUNT_PICO - 5


def test_redis_that_lost_everything_is_rebuilt_with_the_holds_that_the_log_still_has(
    desk: Desk, acme: Customer
) -> None:
    made, keys = budget(acme.tenant, LIMIT_PICO), budget(acme.tenant, LIMIT_PICO, key=acme.key, model_name="demo")
    other = budget(acme.tenant, LIMIT_PICO, model_name="large")
    desk.round()
    running, ended = begun(acme, NOON, 7 * AMOUNT_PICO), row(acme, NOON)
    desk.hold(running, running.held_pico, made, keys)
    store(row(acme, NOON))
    desk.redis.flushdb()
    desk.open = [running, begun(acme, NOON, 0)]
    desk.round()
    assert desk.left(made) == desk.left(keys) == LIMIT_PICO - 8 * AMOUNT_PICO
    assert desk.left(other) == LIMIT_PICO
    # Its gateway is alive and ends it, and finds the restored hold.
    finished = type(ended)(
        **{**{name: getattr(ended, name) for name in ended.__struct_fields__}, "id": running.request_id}
    )
    desk.settle(finished, AMOUNT_PICO)
    desk.open = []
    store(finished)
    desk.round()
    assert desk.left(made) == desk.left(keys) == LIMIT_PICO - 2 * AMOUNT_PICO
    assert desk.holds() == {}


def test_a_hold_that_redis_lost_alone_is_taken_again_once_it_is_sure(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    desk.round()
    desk.open = [begun(acme, NOON, 3 * AMOUNT_PICO)]
    desk.round()
    assert desk.left(made) == LIMIT_PICO, "its END may be on its way"
    desk.round()
    assert desk.left(made) == LIMIT_PICO - 3 * AMOUNT_PICO


def test_a_request_that_no_hold_announced_is_taken_off_once_it_is_stored(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    desk.round()
    store(row(acme, NOON))
    desk.round()
    assert desk.left(made) == LIMIT_PICO - AMOUNT_PICO


def test_a_row_rated_late_is_taken_off_once_it_is_rated(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    store(row(acme, NOON, model_name="new"))
    desk.round()
    assert desk.left(made) == LIMIT_PICO
    price_from(NOON + HOUR, DEMO_RATES, "new")
    rate_unrated()
    desk.round()
    assert desk.left(made) == LIMIT_PICO - AMOUNT_PICO


def test_an_open_hold_that_nobody_will_end_is_given_back_when_it_is_old(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    desk.round()
    young = row(acme, NOON)
    desk.hold(young, 5, made)
    desk.hold(row(acme, NOON - 2 * HOUR), 7, made)
    desk.redis.hset(holds_key(desk.tenant_id), "in advance", hold_value(11, [desk.name(made)]))
    desk.redis.decrby(desk.key(made), 11)
    assert 2 * HOUR.total_seconds() > ORPHANED_SECONDS
    desk.round()
    assert desk.left(made) == LIMIT_PICO - 23
    desk.round(NOON + HOUR)
    assert desk.left(made) == LIMIT_PICO - 16
    assert set(desk.holds()) == {young.id.hex, "in advance"}


def test_the_hold_of_a_deferred_request_that_waited_for_hours_is_kept_by_every_hosts_drain(
    desk: Desk, acme: Customer
) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    desk.round()
    waited = row(acme, NOON - 20 * HOUR)  # it has just begun, on another host
    desk.hold(waited, 7, made)
    desk.round()
    desk.round(NOON + HOUR / 2)
    assert desk.left(made) == LIMIT_PICO - 7
    desk.settle(waited, 5)
    desk.round(NOON + HOUR)
    assert desk.left(made) == LIMIT_PICO - 5
    assert list(desk.holds()) == [waited.id.hex]


def test_a_settled_hold_whose_row_never_comes_does_not_stay_in_a_total_budget(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO, period="total")
    desk.round()
    withdrawn = row(acme, NOON)
    desk.hold(withdrawn, 7, made)
    desk.settle(withdrawn, 5)
    day_later = NOON + timedelta(seconds=LINGER_SECONDS + 1)
    for moment in (NOON, day_later, day_later + HOUR / 2):
        desk.round(moment)
        assert desk.left(made) == LIMIT_PICO - 5
    desk.round(day_later + HOUR)
    assert desk.left(made) == LIMIT_PICO
    assert desk.holds() == {}


def test_what_is_right_is_left_alone(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    store(row(acme, NOON))
    desk.round()
    request = row(acme, NOON)
    desk.hold(request, 9, made)
    desk.redis.config_resetstat()
    desk.round()
    stats = desk.redis.info("commandstats")
    assert "cmdstat_set" not in stats
    assert "cmdstat_decrby" not in stats


def test_more_than_was_allowed_may_have_been_spent(desk: Desk, acme: Customer) -> None:
    store(row(acme, NOON), row(acme, NOON))
    made = budget(acme.tenant, AMOUNT_PICO)
    desk.round()
    assert desk.left(made) == -AMOUNT_PICO


def test_the_keeper_of_many_tenants_asks_for_all_of_them_together(desk: Desk) -> None:
    many = [customers.create(f"tenant-{number}") for number in range(30)]
    made = [budget(each.tenant, LIMIT_PICO + number) for number, each in enumerate(many)]
    desk.round()

    def keys() -> Sequence[str]:
        return [f"{counter_prefix(TenantId(each.tenant_id))}{desk.name(each)}" for each in made]

    assert [int(value or 0) for value in desk.redis.mget(keys())] == [LIMIT_PICO + number for number in range(30)]


@pytest.mark.parametrize(
    "value",
    ["", " ", "nonsense", "=", "==5", "-5", "1_000", "٣", "1.5", "1e9", str(2**62 + 1), "9" * 40, b"\xff\xfe"],
)
def test_an_entry_that_is_no_hold_is_removed_and_every_counter_is_right(
    desk: Desk, acme: Customer, value: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    made, day = budget(acme.tenant, LIMIT_PICO), budget(acme.tenant, LIMIT_PICO, period="day")
    other = budget(customers.create("globex").tenant, LIMIT_PICO + 1)
    request = row(acme, NOON)
    desk.redis.hset(holds_key(desk.tenant_id), request.id.hex, hold_value(5, [desk.name(made)]))
    suffix = b" " + desk.name(made).encode()
    desk.redis.hset(holds_key(desk.tenant_id), "x", value.encode() + suffix if isinstance(value, str) else value)
    desk.redis.hset(holds_key(desk.tenant_id), b"\xff", value)
    desk.round()
    assert [desk.left(made), desk.left(day)] == [LIMIT_PICO - 5, LIMIT_PICO]
    assert desk.redis.get(f"{counter_prefix(TenantId(other.tenant_id))}{desk.name(other)}") == str(LIMIT_PICO + 1)
    assert list(desk.holds()) == [request.id.hex]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"removing 2 entries of {holds_key(desk.tenant_id)} that are no holds, such as 'x'")
    desk.round()
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_a_running_request_whose_hold_was_overwritten_holds_it_again(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    desk.round()
    running = begun(acme, NOON, 3 * AMOUNT_PICO)
    desk.hold(running, running.held_pico, made)
    desk.open = [running]
    desk.round()
    desk.redis.hset(holds_key(desk.tenant_id), running.request_id.hex, "nonsense")
    desk.round()
    assert desk.left(made) == LIMIT_PICO - 3 * AMOUNT_PICO
    assert desk.holds() == {running.request_id.hex: hold_value(3 * AMOUNT_PICO, [desk.name(made)])}


@pytest.mark.parametrize("value", ["", "nonsense", "1.5", "9" * 40, b"\xff"])
def test_a_counter_that_is_no_amount_is_counted_again(desk: Desk, acme: Customer, value: str | bytes) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    desk.redis.set(desk.key(made), value)
    desk.round()
    assert desk.left(made) == LIMIT_PICO


def test_keys_of_another_type_in_the_place_of_holds_and_counters_are_replaced(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    desk.redis.set(holds_key(desk.tenant_id), "nonsense")
    desk.redis.lpush(desk.key(made), "nonsense")
    desk.round()
    assert desk.left(made) == LIMIT_PICO
    assert desk.holds() == {}


def test_a_hold_from_a_time_that_no_calendar_has_stops_no_drain(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    desk.redis.hset(holds_key(desk.tenant_id), "f" * 12 + "7fff8" + "f" * 15, hold_value(5, [desk.name(made)]))
    desk.round()
    assert desk.left(made) == LIMIT_PICO - 5


def test_redis_that_is_away_stops_no_drain(acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO, period="total")
    away = BudgetReconciler(BudgetCounters("redis://127.0.0.1:1", timeout_seconds=0.2), list)
    began = time.monotonic()
    away.run_if_due(caught_up=True)
    assert away.due_at > began, "another round follows"
    assert BudgetWindow.objects.filter(budget_id=made.id).exists(), "what needs no Redis is done"


def test_a_stall_is_not_multiplied(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    desk.reconciler.run_if_due(caught_up=True)
    while time.monotonic() < desk.reconciler.due_at:
        time.sleep(0.01)
    began = time.monotonic()
    desk.redis.client_pause(2000)
    desk.reconciler.run_if_due(caught_up=True)
    stalled = time.monotonic() - began
    assert stalled >= 1.9, "the round waited for Redis"
    assert desk.reconciler.due_at - time.monotonic() < stalled
    desk.redis.flushdb()
    while time.monotonic() < desk.reconciler.due_at:
        time.sleep(0.01)
    desk.reconciler.run_if_due(caught_up=True)
    assert desk.left(made, timezone.now()) is not None


def counted_on(desk: Desk) -> str | None:
    found = desk.redis.get(counter_prefix(desk.tenant_id) + COUNTED_ON)
    return None if found is None else str(found)


def run_id(desk: Desk) -> str:
    return str(desk.redis.info("server")["run_id"])


def fail_over(desk: Desk) -> None:
    """Leave a server that was counted elsewhere, and that has not got the last hold."""
    desk.redis.set(counter_prefix(desk.tenant_id) + COUNTED_ON, "the former primary")
    report(desk.redis, "", "the former primary", time.time())
    desk.connect()


def test_an_older_counter_is_counted_at_once_with_the_holds_that_it_lacks(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    desk.round()
    assert counted_on(desk) == run_id(desk)
    desk.open.append(begun(acme, NOON, 1000))  # admitted by the former primary, and not replicated
    fail_over(desk)
    desk.round()
    assert counted_on(desk) == run_id(desk)
    assert desk.left(made) == LIMIT_PICO - 1000
    assert desk.holds() == {desk.open[0].request_id.hex: hold_value(1000, [desk.name(made)])}


def test_the_counters_stay_unknown_until_every_host_has_restored_its_holds(desk: Desk, acme: Customer) -> None:
    made = budget(acme.tenant, LIMIT_PICO)
    desk.round()
    report(desk.redis, "other", "the former primary", time.time())
    report(desk.redis, "gone", "the former primary", time.time() - 3600)
    fail_over(desk)
    desk.round()
    assert counted_on(desk) == "the former primary", "the other host has not reported yet"
    theirs = begun(acme, NOON, 1000)
    desk.redis.hset(holds_key(desk.tenant_id), theirs.request_id.hex, hold_value(1000, [desk.name(made)]))
    report(desk.redis, "other", run_id(desk), time.time())
    desk.round()
    assert counted_on(desk) == run_id(desk)
    assert desk.left(made) == LIMIT_PICO - 1000


def test_a_host_that_died_with_the_primary_is_not_waited_for_long(
    desk: Desk, acme: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget(acme.tenant, LIMIT_PICO)
    desk.round()
    report(desk.redis, "other", "the former primary", time.time())
    fail_over(desk)
    desk.round()
    assert counted_on(desk) == "the former primary"
    monkeypatch.setattr("billing.budgets.reconciler.PEER_SECONDS", 0.0)
    desk.round()
    assert counted_on(desk) == run_id(desk)


def report(redis: Redis, host: str, server: str, now: float) -> None:
    redis.hset(redis_counters.RECONCILERS, host, f"{server} {now:.3f}")
