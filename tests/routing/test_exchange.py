"""Hosts exchange what they computed and how busy engines are; a malformed message does no harm."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.errors import BadMessage
from routing.exchange import MAX_LINKS, Exchange
from routing.fair_queue import FairQueue, Priority
from routing.router import Boot, Router
from routing.shared.counters import RECENT_SECONDS
from routing.shared.state import MAX_REMOTE, private
from tests.routing.prompts import ask, replicas, user
from tests.routing.test_router import DOCUMENT, Clock, answer, serve


class Host:
    """A gateway process on a host of its own."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.router = Router(private(1 << 14, 64), clock=clock)
        self.exchange = Exchange(self.router, clock=clock)
        self.router.on_used = self.exchange.used
        self.router.follow({each: Boot() for each in replicas(3)})


class Elsewhere(Clock):
    """Another machine's clock, which began at another time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __call__(self) -> float:
        return self.clock.now + 5000.0


@pytest.fixture
def clock() -> Clock:
    """The time of the first host."""
    return Clock()


@pytest.fixture
def hosts(clock: Clock) -> list[Host]:
    """Two hosts whose clocks differ."""
    return [Host(clock), Host(Elsewhere(clock))]


def tell(hosts: list[Host], clock: Clock, seconds: float = 1.5) -> None:
    """Let all hosts exchange messages, and ``seconds`` pass."""
    for message in [each.exchange.pack() for each in hosts]:
        for host in hosts:
            list(host.exchange.apply(message))
    clock.now += seconds
    for host in hosts:
        host.router.state.look(host.clock())


def test_a_prompt_is_warm_where_another_host_sent_it(hosts: list[Host], clock: Clock) -> None:
    here, there = hosts
    sent = serve(there.router, ask(user(DOCUMENT)), replicas(3)[2:])
    assert serve(here.router, ask(user("a")), replicas(3)).warm_tokens == 0
    tell(hosts, clock)
    found = serve(here.router, ask(user(DOCUMENT), user("and?")), replicas(3))
    assert (found.replica_id, found.reason) == (sent.replica_id, "prefix")
    assert here.router.state.remote_processes == there.router.state.remote_processes == 1


def test_a_tenant_that_waits_on_two_hosts_gets_no_more_than_one_that_waits_on_one(
    hosts: list[Host], clock: Clock
) -> None:
    queues: list[FairQueue[str]] = [FairQueue("model", each.router.counters) for each in hosts]
    both, one = UUID(int=1), UUID(int=2)
    for _ in range(60):
        queues[0].add("both", both)
        queues[1].add("both", both)
        queues[1].add("one", one)
    served = []
    for _ in range(40):
        for queue in queues:
            ticket = queue.first()
            assert ticket is not None
            queue.take(ticket, 100)
            served.append(ticket.item)
        tell(hosts, clock, seconds=0.1)
    assert served.count("one") == pytest.approx(40, abs=2)


def test_what_another_host_charges_is_no_debt_of_a_tenant_that_does_not_wait_here(
    hosts: list[Host], clock: Clock
) -> None:
    here, there = (FairQueue[str]("model", each.router.counters) for each in hosts)
    tenant = UUID(int=1)
    here.take(here.add("a", tenant), 100)
    tell(hosts, clock, seconds=1.1 * RECENT_SECONDS)
    there.take(there.add("b", tenant), 5000)
    tell(hosts, clock)
    assert (here.counter(tenant), there.counter(tenant)) == (100, 5000)


def test_what_another_host_charges_counts_for_a_tenant_that_waits_for_long(hosts: list[Host], clock: Clock) -> None:
    here, there = (FairQueue[str]("model", each.router.counters) for each in hosts)
    tenant = UUID(int=1)
    there.add("waits", tenant, Priority.LOW)
    there.add("is first", UUID(int=2))
    for _ in range(int(1.5 * RECENT_SECONDS)):
        there.post(there.first())
        tell(hosts, clock, seconds=1.0)
    here.take(here.add("a", tenant, Priority.LOW), 100)
    tell(hosts, clock, seconds=0.1)
    assert there.counter(tenant, Priority.LOW) == 100


def test_a_host_that_comes_does_not_hear_of_all_that_was_charged_before(hosts: list[Host], clock: Clock) -> None:
    here, there = (FairQueue[str]("model", each.router.counters) for each in hosts)
    tenant = UUID(int=1)
    here.take(here.add("a", tenant), 1_000_000)
    clock.now += 3600
    there.take(there.add("b", tenant), 100)
    tell(hosts, clock)
    assert there.counter(tenant) == 100


def test_a_session_is_at_home_where_another_host_settled_it(hosts: list[Host], clock: Clock) -> None:
    here, there = hosts
    for number in range(12):
        turn = ask(user("a"), session=str(number), strict=True)
        home = serve(there.router, turn, replicas(3)[number % 3 :][:1]).replica_id
        tell(hosts, clock)
        found = serve(here.router, turn, replicas(3))
        assert (found.replica_id, found.reason) == (home, "session")


def test_a_message_of_an_earlier_release_is_read(hosts: list[Host], clock: Clock) -> None:
    here, there = hosts
    serve(there.router, ask(user(DOCUMENT), session="s"), replicas(1))
    message = msgspec.msgpack.decode(there.exchange.pack())
    message[3] = [prompt[:6] for prompt in message[3]]
    list(here.exchange.apply(msgspec.msgpack.encode(message)))
    assert here.router.costs(ask(user(DOCUMENT)), replicas(1), clock.now)[0].warm_tokens > 0


def test_what_no_engine_answered_is_not_told(hosts: list[Host], clock: Clock) -> None:
    here, there = hosts
    there.router.finish(there.router.choose(ask(user(DOCUMENT)), replicas(1)), answered=False)
    tell(hosts, clock)
    (costs,) = here.router.costs(ask(user(DOCUMENT)), replicas(1), clock.now)
    assert (costs.warm_tokens, costs.backlog) == (0, 0)


def test_work_that_another_host_sent_is_waited_for_and_withdrawn(hosts: list[Host], clock: Clock) -> None:
    here, there = hosts
    tell(hosts, clock)
    tell(hosts, clock)
    work = there.router.choose(ask(user("b" * 240_000)), replicas(3)[1:2])
    tell(hosts, clock)
    waits = [each.backlog for each in here.router.costs(ask(user("c")), replicas(3), clock.now)]
    assert waits[1] > 0.5 * work.prefill > waits[0]
    there.router.finish(work, answered=False)
    tell(hosts, clock)
    assert here.router.costs(ask(user("c")), replicas(3), clock.now)[1].backlog == 0


def test_what_another_host_learned_of_speeds_counts(hosts: list[Host], clock: Clock) -> None:
    here, there = hosts
    for number in range(40):
        for replica, seconds in zip(replicas(2), (1.0, 0.05), strict=True):
            choice = there.router.choose(ask(user(f"{number} " * 1000)), [replica])
            clock.now += seconds
            answer(there.router, choice, computed_tokens=choice.prefix.tokens)
    tell(hosts, clock)
    slow, quick = here.router.costs(ask(user("e" * 4000)), replicas(2), clock.now)
    assert slow.prefill > 4 * quick.prefill


def test_a_host_that_is_silent_leaves_no_load(hosts: list[Host], clock: Clock) -> None:
    here, there = hosts
    tell(hosts, clock)
    there.router.choose(ask(user("b" * 240_000)), replicas(3)[1:2])
    tell(hosts, clock)
    clock.now += 60
    here.router.choose(ask(user("")), replicas(1))
    assert here.router.state.remote_processes == 0
    assert here.router.costs(ask(user("c")), replicas(3), clock.now)[1].backlog == 0


def test_a_message_is_bounded(hosts: list[Host], clock: Clock) -> None:
    here, there = hosts
    for number in range(1000):
        serve(there.router, ask(user(f"{number}" + DOCUMENT)), replicas(1))
    message = there.exchange.pack()
    assert len(message) < 20 * MAX_LINKS
    list(here.exchange.apply(message))
    first, last = (
        here.router.costs(ask(user(f"{number}" + DOCUMENT)), replicas(1), clock.now)[0] for number in (0, 999)
    )
    assert first.warm_tokens == 0 < last.warm_tokens
    assert len(there.exchange.pack()) < 4096


@given(st.binary(max_size=64))
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(BadMessage):
        list(Host(Clock()).exchange.apply(message))


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf"), "1", None])
@pytest.mark.parametrize("at", range(21))
def test_a_row_with_what_is_no_amount_is_refused(hosts: list[Host], at: int, amount: object) -> None:
    here, there = hosts
    message = msgspec.msgpack.decode(there.exchange.pack())
    for row in message[2].values():
        row[at] = amount
    try:
        list(here.exchange.apply(msgspec.msgpack.encode(message)))
    except BadMessage:
        return
    costs = here.router.costs(ask(user("a")), replicas(3), here.clock())
    assert all(0 <= each.cost < 10 for each in costs)


def test_a_prompt_with_a_link_that_ends_nowhere_is_refused(hosts: list[Host]) -> None:
    here, there = hosts
    serve(there.router, ask(user(DOCUMENT)), replicas(1))
    told = msgspec.msgpack.decode(there.exchange.pack())
    told[3][0][5] = told[3][0][5][:-1]
    with pytest.raises(BadMessage, match="without an end"):
        list(here.exchange.apply(msgspec.msgpack.encode(told)))


def test_a_remote_place_that_is_used_again_hides_no_work(hosts: list[Host], clock: Clock) -> None:
    """48 starts of gateways elsewhere, each of which sent much work before it ended."""
    here = hosts[0]
    for _ in range(MAX_REMOTE + 2):
        there = Host(clock)
        tell([here, there], clock)
        there.router.choose(ask(user("b" * 240_000)), replicas(1))
        tell([here, there], clock)
        clock.now += 61
    for number in range(10):
        choice = here.router.choose(ask(user(f"{number}" * 24_000)), replicas(1))
    (cost,) = here.router.costs(ask(user("c")), replicas(1), clock.now)
    assert cost.backlog > 5 * choice.prefill


@pytest.mark.parametrize("message", [b"\x91" * 100_000, bytes(5 << 20)])
def test_a_message_that_is_deep_or_large_is_refused(hosts: list[Host], message: bytes) -> None:
    with pytest.raises(BadMessage):
        list(hosts[0].exchange.apply(message))
