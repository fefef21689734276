"""What one more request in a batch costs the others is fitted to what answers took."""

from __future__ import annotations

import random

import pytest

from routing.decode_speed import PRIOR_SECONDS, DecodeSpeed


def test_it_finds_the_slope_of_a_straight_line() -> None:
    speed, dice = DecodeSpeed(), random.Random(1)
    for _ in range(300):
        batch, tokens = dice.randint(1, 40), dice.randint(20, 200)
        speed.learn(tokens, (tokens - 1) * (0.008 + 0.0005 * batch), batch)
    assert speed.seconds_per_neighbour == pytest.approx(0.0005, rel=0.05)
    assert 80 < speed.mean_tokens < 140


def test_before_batches_differ_it_is_what_is_assumed() -> None:
    speed = DecodeSpeed()
    assert speed.seconds_per_neighbour == PRIOR_SECONDS
    for _ in range(50):
        speed.learn(100, 3.0, 4)
    assert speed.seconds_per_neighbour == pytest.approx(PRIOR_SECONDS)


def test_it_is_never_negative_and_an_answer_of_one_token_teaches_no_speed() -> None:
    speed = DecodeSpeed()
    for batch in (1, 10) * 50:
        speed.learn(1, 0.0, batch)
        speed.learn(11, 1.0 / batch, batch)
    assert speed.seconds_per_neighbour == 0
