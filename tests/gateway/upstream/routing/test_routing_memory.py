"""Gateway processes of one host know together where prompts are warm; one that cannot join serves without."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from django.conf import LazySettings

from gateway import metrics
from gateway.upstream.routing import memory as routing_memory


def test_processes_join_and_leave(settings: LazySettings, tmp_path: Path) -> None:
    settings.ROUTING_MEMORY, settings.ROUTING_BYTES = tmp_path / "routing", 3 << 20
    one, other = routing_memory.open_shared(), routing_memory.open_shared()
    assert one is not None
    assert other is not None
    assert len(one.state.prefixes) == 1 << 18  # two of the three MiB
    assert one.count() == other.count() == _shown() == 2
    one.close()
    assert _shown() == 1
    routing_memory.close(other)
    assert _shown() == 0
    assert not list(tmp_path.iterdir())


def test_a_process_that_cannot_join_says_so_and_goes_on(
    settings: LazySettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings.ROUTING_MEMORY, settings.ROUTING_BYTES = tmp_path / "gone" / "routing", 1 << 20
    with caplog.at_level(logging.WARNING):
        assert routing_memory.open_shared() is None
    assert "shares nothing with others of this host" in caplog.text
    assert len(routing_memory.private().prefixes) == 1 << 17
    assert _shown() == 1


def _shown() -> float:
    (family,) = metrics.ROUTING_PROCESSES.collect()
    return family.samples[0].value
