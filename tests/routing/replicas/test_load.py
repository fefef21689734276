"""A replica's backlog runs down by the clock, and answers correct it."""

from __future__ import annotations

import pytest

from routing.replicas.load import PRIOR_SECONDS_PER_TOKEN, ReplicaLoad, typical_seconds_per_token


def test_work_adds_up_and_runs_down() -> None:
    load: ReplicaLoad[str] = ReplicaLoad()
    assert load.estimate(100.0).backlog == 0
    load.send("a", 2.0, 100.0, streamed=False)
    load.send("b", 1.0, 100.5, streamed=False)
    assert load.estimate(101.0).backlog == pytest.approx(2.0)
    assert load.estimate(110.0).backlog == 0


def test_after_an_idle_time_work_counts_from_its_arrival() -> None:
    load: ReplicaLoad[str] = ReplicaLoad()
    load.send("a", 1.0, 0.0, streamed=False)
    load.send("b", 1.0, 50.0, streamed=False)
    assert load.estimate(50.0).backlog == pytest.approx(1.0)


def test_a_first_token_that_comes_early_shows_that_the_work_before_it_is_done() -> None:
    load: ReplicaLoad[str] = ReplicaLoad()
    load.send("a", 5.0, 0.0, streamed=True)
    load.send("b", 1.0, 0.0, streamed=True)
    assert load.answered("a", 0.0, 0.5) == pytest.approx(0.5)
    assert load.estimate(0.5).backlog == pytest.approx(1.0)
    assert load.answered("b", 0.0, 2.0) == pytest.approx(1.5)  # since the first token before
    assert load.estimate(2.0).backlog == 0


def test_while_a_streamed_request_has_no_token_what_follows_it_is_not_done() -> None:
    load: ReplicaLoad[str] = ReplicaLoad()
    load.send("late", 1.0, 0.0, streamed=True)
    load.send("next", 3.0, 0.0, streamed=True)
    assert load.estimate(10.0).backlog == pytest.approx(3.0)
    assert load.estimate(100.0).backlog == 0.0  # its engine is stuck with it alone
    load.answered("late", 0.0, 100.0)
    assert load.estimate(101.0).backlog == pytest.approx(2.0)


def test_a_request_that_ends_without_an_answer_leaves_no_work() -> None:
    load: ReplicaLoad[str] = ReplicaLoad()
    load.send("gone", 1000.0, 0.0, streamed=True)
    load.send("next", 3.0, 0.0, streamed=False)
    load.withdraw("gone", 1000.0, 0.0)
    load.withdraw("gone", 1000.0, 0.0)
    assert load.estimate(1.0).backlog == pytest.approx(2.0)
    assert load.estimate(10.0).backlog == 0
    assert set(load.running) == {"next"}


def test_what_a_prompt_displaces_grows_with_arrivals_and_with_its_length() -> None:
    idle: ReplicaLoad[int] = ReplicaLoad()
    busy: ReplicaLoad[int] = ReplicaLoad()
    for number in range(20):
        busy.send(number, 0.2, number * 0.4, streamed=False)
    assert idle.estimate(8.0).displaced(1.0) == 0
    assert 0 < busy.estimate(8.0).displaced(0.1) < busy.estimate(8.0).displaced(1.0) / 10
    assert busy.estimate(100.0).displaced(1.0) < busy.estimate(8.0).displaced(1.0) / 100


def test_speed_is_learned_and_begins_with_that_of_its_fellows() -> None:
    slow: ReplicaLoad[str] = ReplicaLoad()
    new: ReplicaLoad[str] = ReplicaLoad()
    assert typical_seconds_per_token([new.estimate(0.0)]) == pytest.approx(PRIOR_SECONDS_PER_TOKEN)
    for _ in range(200):
        slow.learn(1.0, 1000, 0.0)
    typical = typical_seconds_per_token([slow.estimate(0.0), new.estimate(0.0)])
    assert slow.estimate(0.0).seconds_per_token(typical) == pytest.approx(1 / 1000, rel=0.1)
    assert new.estimate(0.0).seconds_per_token(typical) == typical == pytest.approx(1 / 1000, rel=0.25)


def test_one_slow_answer_is_forgotten_and_weighs_little() -> None:
    """Thirty seconds for forty tokens: an engine that compiled something for its first prompt."""
    load: ReplicaLoad[str] = ReplicaLoad()
    load.learn(30.0, 40, 0.0)
    assert load.estimate(0.0).seconds_per_token(PRIOR_SECONDS_PER_TOKEN) < 1.1 * PRIOR_SECONDS_PER_TOKEN
    for _ in range(100):
        load.learn(60.0, 4000, 0.0)
    assert load.estimate(0.0).seconds_per_token(PRIOR_SECONDS_PER_TOKEN) > 50 * PRIOR_SECONDS_PER_TOKEN
    assert load.estimate(7200.0).seconds_per_token(PRIOR_SECONDS_PER_TOKEN) < 1.5 * PRIOR_SECONDS_PER_TOKEN


def test_a_later_answer_shows_that_what_was_sent_before_is_computed_too() -> None:
    load: ReplicaLoad[str] = ReplicaLoad()
    load.send("silent", 1.0, 0.0, streamed=True)
    load.send("later", 1.0, 0.0, streamed=True)
    load.answered("later", 0.0, 2.0)
    load.send("next", 1.0, 2.0, streamed=False)
    assert load.estimate(2.5).backlog == pytest.approx(0.5)


def test_whole_answers_alone_leave_no_backlog_behind() -> None:
    """Work is sent twice as fast as it is assumed to be done, and is done ten times as fast."""
    load: ReplicaLoad[int] = ReplicaLoad()
    for number in range(1000):
        now = number * 0.5
        load.send(number, 1.0, now, streamed=False)
        load.answered(number, now, now + 0.1)
        load.end(number, now + 0.1)
        assert load.estimate(now + 0.1).backlog == 0
