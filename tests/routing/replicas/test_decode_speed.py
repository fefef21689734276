"""What one more request in a batch costs the others is fitted to what answers took."""

from __future__ import annotations

import random

import pytest

from routing.replicas.decode_speed import PRIOR_SECONDS, DecodeSpeed, mean_tokens, seconds_per_neighbour


def test_it_finds_the_slope_of_a_straight_line() -> None:
    speed, dice = DecodeSpeed(), random.Random(1)
    for _ in range(300):
        batch, tokens = dice.randint(1, 40), dice.randint(20, 200)
        speed.learn(tokens, (tokens - 1) * (0.008 + 0.0005 * batch), batch)
    assert seconds_per_neighbour(speed.sums) == pytest.approx(0.0005, rel=0.05)
    assert 80 < mean_tokens(speed.sums) < 140


def test_before_batches_differ_it_is_what_is_assumed() -> None:
    speed = DecodeSpeed()
    assert seconds_per_neighbour(speed.sums) == PRIOR_SECONDS
    for _ in range(50):
        speed.learn(100, 3.0, 4)
    assert seconds_per_neighbour(speed.sums) == pytest.approx(PRIOR_SECONDS)


def test_it_is_never_negative_and_an_answer_of_one_token_teaches_no_speed() -> None:
    speed = DecodeSpeed()
    for batch in (1, 10) * 50:
        speed.learn(1, 0.0, batch)
        speed.learn(11, 1.0 / batch, batch)
    assert seconds_per_neighbour(speed.sums) == 0


def test_what_two_processes_learn_adds_up() -> None:
    both, one, other = DecodeSpeed(), DecodeSpeed(), DecodeSpeed()
    for batch in range(1, 11):
        for speed, part in ((one, 0), (other, 1)):
            answer = (10, 9 * (0.01 + 0.001 * batch), batch + 10 * part)
            speed.learn(*answer)
            both.learn(*answer)
    together = [a + b for a, b in zip(one.sums, other.sums, strict=True)]
    assert seconds_per_neighbour(together) == pytest.approx(seconds_per_neighbour(both.sums), rel=0.1)
