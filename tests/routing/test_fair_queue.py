"""Requests that wait are served by class, then tenant by tenant, so that each one gets its share of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.fair_queue import PATIENCE_SECONDS, POSTED_SECONDS, FairQueue, Priority
from routing.shared.counters import Counter, CounterTable
from routing.shared.file import SharedFile
from routing.shared.state import COUNTER_WORDS, COUNTERS, private
from tests.routing.test_router import Clock

ACME, GLOBEX, INITECH = (UUID(int=number) for number in range(1, 4))


@pytest.fixture
def clock() -> Clock:
    """The time of all processes."""
    return Clock()


@pytest.fixture
def queues(tmp_path: Path, clock: Clock) -> Iterator[list[FairQueue[str]]]:
    """The queues of one model in two processes of a host."""
    with ExitStack() as stack:
        files = [SharedFile.open(tmp_path / "routing", 1 << 6, 1 << 6) for _ in range(2)]
        for file in files:
            stack.callback(file.close)
        yield [FairQueue("model", CounterTable(file.state, clock)) for file in files]


def served_by_all(queues: list[FairQueue[str]], count: int) -> list[str]:
    """Return the next requests when there is room for one at a time, and each process looks in its turn."""
    found: list[str] = []
    while len(found) < count:
        for queue in queues:
            ticket = queue.first()
            if ticket is not None and queue.may_serve(ticket, room=True):
                queue.take(ticket, 100)
                found.append(ticket.item)
            queue.post(queue.first())
    return found[:count]


def served(queue: FairQueue[str], count: int, tokens: float = 100) -> list[str]:
    """Return the next requests, each of which takes ``tokens``."""
    found = []
    for _ in range(count):
        ticket = queue.first()
        assert ticket is not None
        queue.take(ticket, tokens)
        found.append(ticket.item)
    return found


def waiting(*requests: tuple[str, UUID]) -> FairQueue[str]:
    """Return a queue with these requests of the standard class."""
    queue: FairQueue[str] = FairQueue()
    for name, tenant in requests:
        queue.add(name, tenant)
    return queue


def test_nothing_is_first_in_an_empty_queue() -> None:
    queue: FairQueue[str] = FairQueue()
    assert (queue.first(), len(queue)) == (None, 0)


def test_one_tenants_requests_keep_their_order() -> None:
    queue = waiting(("a", ACME), ("b", ACME), ("c", ACME))
    assert served(queue, 3) == ["a", "b", "c"]


def test_a_tenant_with_few_requests_does_not_wait_for_anothers_flood() -> None:
    queue = waiting(*((f"flood {number}", ACME) for number in range(100)), ("quiet", GLOBEX))
    assert served(queue, 3) == ["flood 0", "quiet", "flood 1"]


def test_tenants_get_equal_tokens_and_not_equal_requests() -> None:
    queue = waiting(*(("large", ACME) for _ in range(10)), *(("small", GLOBEX) for _ in range(40)))
    got = {"large": 0, "small": 0}
    for _ in range(20):
        ticket = queue.first()
        assert ticket is not None
        queue.take(ticket, 300 if ticket.item == "large" else 100)
        got[ticket.item] += 1
    assert got == {"large": 5, "small": 15}


def test_a_tenant_of_twice_the_weight_gets_twice_the_tokens() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(30):
        queue.add("heavy", ACME, weight=2.0)
        queue.add("light", GLOBEX)
    assert served(queue, 30).count("heavy") == 20


def test_a_higher_class_goes_first_whatever_its_tenant_has_had() -> None:
    queue = waiting(("standard", GLOBEX))
    queue.add("low", INITECH, Priority.LOW)
    for number in range(3):
        queue.add(f"high {number}", ACME, Priority.HIGH)
    assert served(queue, 5) == ["high 0", "high 1", "high 2", "standard", "low"]
    assert (len(queue), queue.size(Priority.HIGH)) == (0, 0)


def test_a_tenant_that_was_idle_has_saved_up_nothing() -> None:
    queue = waiting(*((f"busy {number}", ACME) for number in range(20)))
    served(queue, 10)
    for number in range(10):
        queue.add(f"late {number}", GLOBEX)
    assert served(queue, 6) == ["late 0", "busy 10", "late 1", "busy 11", "late 2", "busy 12"]


def test_what_an_answer_took_counts_for_the_next_requests() -> None:
    queue = waiting(("a", ACME), ("b", GLOBEX), ("c", ACME), ("d", GLOBEX))
    first = queue.first()
    assert first is not None
    queue.take(first, 10)
    queue.charge(first, 500)
    assert served(queue, 3, tokens=10) == ["b", "d", "c"]


def test_a_correction_gives_back_what_was_too_much() -> None:
    queue = waiting(("a", ACME), ("b", GLOBEX), ("c", ACME), ("d", GLOBEX))
    first = queue.first()
    assert first is not None
    queue.take(first, 500)
    queue.charge(first, -495)
    assert served(queue, 3, tokens=10) == ["b", "c", "d"]


def test_a_request_that_leaves_makes_way_and_is_not_charged() -> None:
    queue = waiting(("a", ACME), ("b", ACME), ("c", ACME))
    first = queue.first()
    assert first is not None
    queue.remove(first)
    queue.remove(first)
    assert (len(queue), queue.counter(ACME)) == (2, 0.0)
    assert served(queue, 2) == ["b", "c"]


@given(st.lists(st.tuples(st.sampled_from([ACME, GLOBEX]), st.integers(1, 1000)), max_size=60))
def test_tenants_that_wait_are_never_further_apart_than_one_request(requests: list[tuple[UUID, int]]) -> None:
    queue: FairQueue[int] = FairQueue()
    for tenant, tokens in requests:
        queue.add(tokens, tenant)
    left = {tenant: sum(each == tenant for each, _ in requests) for tenant in (ACME, GLOBEX)}
    while all(left.values()):
        assert abs(queue.counter(ACME) - queue.counter(GLOBEX)) <= 1000
        ticket = queue.first()
        assert ticket is not None
        queue.take(ticket, ticket.item)
        left[ticket.tenant] -= 1


def test_a_class_that_is_served_first_puts_nobody_of_a_later_class_behind() -> None:
    queue = waiting(*((f"flood {number}", ACME) for number in range(50)))
    for number in range(20):
        queue.add(f"urgent {number}", INITECH, Priority.HIGH)
    served(queue, 20, tokens=10_000)
    queue.add("newcomer", GLOBEX)
    assert "newcomer" in served(queue, 2)


def test_a_tenant_gets_no_more_through_two_processes_than_another_through_one(queues: list[FairQueue[str]]) -> None:
    for number in range(40):
        queues[number % 2].add("both", ACME)
        queues[0].add("one", GLOBEX)
        queues[1].add("also both", ACME)
    got = served_by_all(queues, 40)
    assert got.count("one") == 20
    assert all(abs(got[:upto].count("one") - upto / 2) <= 1 for upto in range(40))


def test_a_higher_class_goes_first_in_whatever_process_it_waits(queues: list[FairQueue[str]]) -> None:
    for queue in queues:
        queue.add("standard", ACME)
    for _ in range(3):
        queues[1].add("high", GLOBEX, Priority.HIGH)
    for queue in queues:
        queue.post(queue.first())
    assert served_by_all(queues, 5) == ["high", "high", "high", "standard", "standard"]


def test_room_that_another_process_does_not_use_is_left_to_it_for_a_moment(
    queues: list[FairQueue[str]], clock: Clock
) -> None:
    here, there = queues
    here.take(here.add("a", ACME), 100)
    mine = here.add("b", ACME)
    assert not here.others_wait()
    there.add("c", GLOBEX)
    there.post(there.first())
    assert here.others_wait()
    for room in (True, False):  # the moment begins again when the room is gone
        assert not here.may_serve(mine, room=room)
        clock.now += PATIENCE_SECONDS * 0.9
    assert not here.may_serve(mine, room=True)
    clock.now += PATIENCE_SECONDS
    assert here.may_serve(mine, room=True)
    assert not here.may_serve(mine, room=False)
    there.post(there.first())
    assert not here.may_serve(mine, room=True)
    clock.now += 1.1 * POSTED_SECONDS  # it has stopped
    assert not here.others_wait()
    assert here.may_serve(mine, room=True)


def test_while_another_process_does_not_use_room_only_the_first_request_is_delayed(
    queues: list[FairQueue[str]], clock: Clock
) -> None:
    here, there = queues
    for number in range(3):
        here.add(f"low {number}", ACME, Priority.LOW)
    there.add("high", GLOBEX, Priority.HIGH)
    there.post(there.first())
    first = here.first()
    assert first is not None
    assert not here.may_serve(first, room=True)
    clock.now += 1.1 * PATIENCE_SECONDS
    while (ticket := here.first()) is not None:
        assert here.may_serve(ticket, room=True)
        here.take(ticket, 100)
    later = here.add("later", ACME, Priority.LOW)  # a moment of its own
    assert not here.may_serve(later, room=True)


def test_a_tenant_that_two_processes_place_at_the_same_moment_soon_has_one_counter(
    queues: list[FairQueue[str]],
) -> None:
    here, there = queues
    mine = here.add("a", ACME)
    keys = mine.counter._table.keys
    (at,) = (at for at in range(0, len(keys), COUNTER_WORDS) if keys[at] == mine.counter._key)
    keys[at] = 0  # as before its last step
    theirs = there.add("b", ACME)
    keys[at] = mine.counter._key
    for queue in queues:
        queue.add("c", ACME)
    here.charge(mine, 100)
    assert theirs.counter.value == 100


def test_a_request_that_comes_undoes_no_charge_of_another_process(queues: list[FairQueue[str]], clock: Clock) -> None:
    here, there = queues
    mine, theirs = here.add("a", ACME), there.add("b", ACME)
    table = mine.counter._table

    def charged_meanwhile() -> float:
        table.clock = clock
        there.charge(theirs, 100)
        return clock()

    table.clock = charged_meanwhile
    here.add("c", ACME)
    assert mine.counter.value == 100


def test_models_for_which_nothing_waits_take_no_place_in_the_table(clock: Clock) -> None:
    table = CounterTable(private(0, 0), clock)
    queue: FairQueue[str] = FairQueue("model", table)
    assert not queue.others_wait()
    queue.post(queue.first())
    assert (queue.counter(ACME), set(table.keys)) == (0.0, {0})


def test_what_was_posted_is_gone_with_the_last_request(queues: list[FairQueue[str]]) -> None:
    here, there = queues
    ticket = there.add("a", ACME)
    there.post(ticket)
    assert here.others_wait()
    there.remove(ticket)
    assert not here.others_wait()


def test_a_counter_that_others_displace_begins_again_with_the_least(clock: Clock) -> None:
    table = CounterTable(private(0, 0), clock)
    least = Counter(table, "least")
    counter = Counter(table, "tenant", least)
    counter.set(700.0)
    assert Counter(table, "tenant").value == 700.0
    for number in range(8 * COUNTERS):
        clock.now += 0.001
        Counter(table, f"{number}").touch()
        least.set(500.0)
    assert (counter.value, least.value) == (500.0, 500.0)
