"""What counts as met when a quiet tenant is measured beside a hostile one."""

from __future__ import annotations

import dataclasses
import math

import pytest

from benchmarks.hostile import report
from benchmarks.hostile.quiet import Served
from benchmarks.hostile.report import Attacked, Run
from benchmarks.machine import Machine

FOUND = Attacked(
    name="large",
    described="10 MB bodies",
    alone_p50_ms=2.0,
    alone_p99_ms=6.0,
    beside_p50_ms=3.0,
    beside_p99_ms=12.0,
    requests=1000,
    failures=0,
    statuses={"429": 10},
    memory_before_mib=70.0,
    memory_most_mib=200.0,
)
MACHINE = Machine(
    cpu_model="x", cores=2, memory_gib=1, kernel="6", python="3", busy_share=0.0, additions_ms=(26.0, 27.0)
)


def test_a_request_without_an_answer_has_no_time_and_counts_as_failed() -> None:
    served = Served(milliseconds=[float(each) for each in range(1, 101)], failures=2)
    assert (served.percentile(50), served.percentile(99)) == (51.0, 100.0)
    assert Served(milliseconds=[], failures=2).percentile(99) == float("inf")


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, True),
        ({"beside_p99_ms": 12.1}, False),
        ({"failures": 1}, False),
        ({"alone_p99_ms": 1.0}, False),
        ({"alone_p99_ms": math.inf}, False),
    ],
)
def test_the_target_is_twice_the_usual_and_no_failure(changes: dict[str, float], met: bool) -> None:
    attacked = dataclasses.replace(FOUND, **changes)  # type: ignore[arg-type]
    run = Run(command="c", date="d", commit="e", machine=MACHINE, seconds=1, rate=1, attacked=[attacked])
    assert ("| met |" in report.document(run)) == met
