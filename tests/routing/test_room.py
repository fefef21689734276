"""A replica has room until one more request would only wait in its engine's own queue."""

from __future__ import annotations

from uuid import UUID

import pytest

from routing.prefixes.prefix_hash import CHUNK_BYTES
from routing.replicas.load import BEHIND_SECONDS, LARGEST_SURPRISE, PRIOR_SECONDS_PER_TOKEN, STUCK_SECONDS
from routing.router import Boot, Choice, Router
from routing.shared.state import private
from tests.routing.prompts import ask, replicas, user
from tests.routing.test_router import Clock

(ONLY,) = replicas(1)
#: Takes longer than a replica may be behind.
LONG = "w" * int(4 * 1.5 * BEHIND_SECONDS / PRIOR_SECONDS_PER_TOKEN)


@pytest.fixture
def clock() -> Clock:
    """The time of the router."""
    return Clock()


@pytest.fixture
def router(clock: Clock) -> Router:
    """A router with a small table and one replica."""
    found = Router(private(1 << 14, 1 << 10), clock=clock)
    found.follow({ONLY: Boot(cache_tokens=20_000)})
    return found


def send(router: Router, text: str, *, streamed: bool = False, max_new_tokens: int = 16) -> Choice:
    """Send a request to the only replica."""
    return router.choose(ask(user(text), streamed=streamed, max_new_tokens=max_new_tokens), [ONLY])


def test_a_replica_of_which_nothing_is_known_has_room() -> None:
    router = Router(private(1 << 14, 1 << 10))
    assert router.has_room(UUID(int=7), None)


def test_it_has_room_until_it_runs_as_many_requests_as_it_can(router: Router) -> None:
    first = send(router, "one")
    assert router.has_room(ONLY, 2)
    send(router, "two")
    assert not router.has_room(ONLY, 2)
    assert router.has_room(ONLY, None)
    router.answered(first, streamed=False)
    router.finish(first, answered=True)
    assert router.has_room(ONLY, 2)


def test_it_has_room_until_its_requests_fill_the_cache(router: Router) -> None:
    sent: list[Choice] = []
    while router.has_room(ONLY, None):
        sent.append(send(router, f"{len(sent)} " + "w" * 4 * 4000))
    assert len(sent) == 5
    router.finish(sent.pop(), answered=False)
    assert router.has_room(ONLY, None)


def test_requests_with_the_same_long_prompt_fill_it_once(router: Router) -> None:
    prompt = "w" * (CHUNK_BYTES * 40)
    for _ in range(20):
        choice = send(router, prompt)
        router.answered(choice, streamed=False)
    assert router.has_room(ONLY, None)


@pytest.mark.parametrize("end", ["first token", "end"])
def test_while_a_long_prompt_is_computed_it_has_no_room(router: Router, clock: Clock, end: str) -> None:
    choice = send(router, LONG, streamed=True)
    assert not router.has_room(ONLY, None)
    clock.now += BEHIND_SECONDS
    assert router.has_room(ONLY, None)
    again = send(router, LONG.replace("w", "v"), streamed=True)
    assert not router.has_room(ONLY, None)
    for each in (choice, again):
        if end == "first token":
            router.answered(each, streamed=True)
        else:
            router.finish(each, answered=False)
    assert router.has_room(ONLY, None)


def test_an_engine_that_is_faster_than_expected_is_not_held_up_by_a_whole_answer(router: Router) -> None:
    send(router, LONG, streamed=False)
    assert router.has_room(ONLY, None)


def test_a_prompt_that_gets_no_token_keeps_others_out_for_a_while_only(router: Router, clock: Clock) -> None:
    stuck = send(router, LONG, streamed=True)
    send(router, LONG.replace("w", "v"), streamed=True)
    clock.now += STUCK_SECONDS
    assert not router.has_room(ONLY, None)
    clock.now += 2 * LARGEST_SURPRISE * stuck.prefill
    assert router.has_room(ONLY, None)
    later = send(router, LONG.replace("w", "u"), streamed=True)
    assert not router.has_room(ONLY, None)
    router.answered(later, streamed=True)
    assert router.has_room(ONLY, None)


def test_a_session_whose_home_has_no_room_is_elsewhere_for_one_request(router: Router) -> None:
    candidates = replicas(2)
    home = router.choose(ask(user("a"), session="s"), candidates).replica_id
    other = next(each for each in candidates if each != home)
    assert router.choose(ask(user("a"), session="s"), candidates, free={other}).replica_id == other
    found = router.choose(ask(user("a"), session="s"), candidates)
    assert (found.replica_id, found.home) == (home, home)


def test_a_strict_session_stays_at_home_though_it_has_no_room(router: Router) -> None:
    candidates = replicas(2)
    home = router.choose(ask(user("a"), session="s", strict=True), candidates).replica_id
    other = next(each for each in candidates if each != home)
    assert router.choose(ask(user("a"), session="s", strict=True), candidates, free={other}).replica_id == home
