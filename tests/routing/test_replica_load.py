"""A replica's backlog runs down by the clock, and answers correct it."""

from __future__ import annotations

import pytest

from routing.replica_load import PRIOR_SECONDS_PER_TOKEN, ReplicaLoad, typical_seconds_per_token


def test_work_adds_up_and_runs_down() -> None:
    load: ReplicaLoad[str] = ReplicaLoad()
    assert load.backlog(100.0) == 0
    load.send("a", 2.0, 100.0, streamed=False)
    load.send("b", 1.0, 100.5, streamed=False)
    assert load.backlog(101.0) == pytest.approx(2.0)
    assert load.backlog(110.0) == 0


def test_after_an_idle_time_work_counts_from_its_arrival() -> None:
    load: ReplicaLoad[str] = ReplicaLoad()
    load.send("a", 1.0, 0.0, streamed=False)
    load.send("b", 1.0, 50.0, streamed=False)
    assert load.backlog(50.0) == pytest.approx(1.0)


def test_a_first_token_that_comes_early_shows_that_the_work_before_it_is_done() -> None:
    load: ReplicaLoad[str] = ReplicaLoad()
    load.send("a", 5.0, 0.0, streamed=True)
    load.send("b", 1.0, 0.0, streamed=True)
    assert load.first_token("a", 0.0, 0.5) == pytest.approx(0.5)
    assert load.backlog(0.5) == pytest.approx(1.0)
    assert load.first_token("b", 0.0, 2.0) == pytest.approx(1.5)  # since the first token before
    assert load.backlog(2.0) == 0


def test_while_a_streamed_request_has_no_token_what_follows_it_is_not_done() -> None:
    load: ReplicaLoad[str] = ReplicaLoad()
    load.send("late", 1.0, 0.0, streamed=True)
    load.send("next", 3.0, 0.0, streamed=True)
    assert load.backlog(100.0) == pytest.approx(3.0)
    load.first_token("late", 0.0, 100.0)
    assert load.backlog(101.0) == pytest.approx(2.0)


def test_a_request_that_ends_without_a_token_holds_nothing_up() -> None:
    load: ReplicaLoad[str] = ReplicaLoad()
    load.send("gone", 1.0, 0.0, streamed=True)
    load.send("next", 3.0, 0.0, streamed=False)
    load.end("gone")
    assert load.backlog(10.0) == 0
    assert load.running == {"next"}


def test_what_a_prompt_displaces_grows_with_arrivals_and_with_its_length() -> None:
    idle: ReplicaLoad[int] = ReplicaLoad()
    busy: ReplicaLoad[int] = ReplicaLoad()
    for number in range(20):
        busy.send(number, 0.2, number * 0.4, streamed=False)
    assert idle.displaced(1.0, 8.0) == 0
    assert 0 < busy.displaced(0.1, 8.0) < busy.displaced(1.0, 8.0) / 10
    assert busy.displaced(1.0, 100.0) < busy.displaced(1.0, 8.0) / 100


def test_speed_is_learned_and_begins_with_that_of_its_fellows() -> None:
    slow: ReplicaLoad[str] = ReplicaLoad()
    new: ReplicaLoad[str] = ReplicaLoad()
    assert typical_seconds_per_token([new]) == pytest.approx(PRIOR_SECONDS_PER_TOKEN)
    for _ in range(200):
        slow.learn(1.0, 1000)
    typical = typical_seconds_per_token([slow, new])
    assert slow.seconds_per_token(typical) == pytest.approx(1 / 1000, rel=0.1)
    assert new.seconds_per_token(typical) == typical == pytest.approx(1 / 1000, rel=0.25)
