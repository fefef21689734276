"""Of a busy project some prompts are sketched, and always the same ones."""

from __future__ import annotations

from gateway.upstream.routing.sketch_log import HOURLY, ProjectShare


def test_a_busy_project_is_sampled_and_a_repeated_prompt_stays_chosen() -> None:
    share = ProjectShare()
    taken = [number for number in range(4000) if share.takes(number.to_bytes(4, "big"))]
    assert len(taken) < 4 * HOURLY
    assert share.bits > 0
    often = (1 << 12).to_bytes(4, "big")
    assert [share.takes(often) for _ in range(3)] == [True] * 3
