"""The uptime of a database that was unavailable counts from its return."""

from __future__ import annotations

from workers.scheduler.database_uptime import LONGEST_PAUSE_SECONDS, DatabaseUptime


def test_presence_lasts_from_the_first_answer_to_the_last_without_a_pause() -> None:
    times = iter([100.0, 102.0, 102.0 + LONGEST_PAUSE_SECONDS, 141.0, 143.5])
    uptime = DatabaseUptime(clock=lambda: next(times))
    assert [uptime.observe().total_seconds() for _ in range(5)] == [0.0, 2.0, 10.0, 0.0, 2.5]
