"""What a command knows of a running instance whose environment it does not have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hearth import environment
from hearth.environment import BadSetting
from hearth.instance import health_ports, running
from hearth.instance.instance import from_environment


def test_a_command_with_another_environment_sees_the_instance_as_it_was_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEARTH_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HEARTH_PORT", "9000")
    started = replace(from_environment(), gateway_processes=2, port=7000, metrics_port=7002)
    running.write(started)
    seen = running.as_started(from_environment())
    assert (seen.api_base, health_ports.further_gateways(seen)) == (started.api_base, ("gateway-2",))
    running.remove(started)
    assert running.as_started(from_environment()).port == 9000


def test_a_port_out_of_range_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_PORT", "70000")
    with pytest.raises(BadSetting, match="HEARTH_PORT"):
        from_environment()


def test_a_variable_that_is_no_setting_is_named_with_a_close_one() -> None:
    names = ("HEARTH_TRUSTED_PROXY", "HEARTH_PORT", "HEARTH_HOLD_SECONDS", "HOME", "HEARTH_BIND", "HEARTH_TEST_MARK")
    found = {each.name: each.close for each in environment.unknown(names)}
    assert found["HEARTH_TRUSTED_PROXY"] == "HEARTH_TRUSTED_PROXIES"
    assert set(found) == {"HEARTH_TRUSTED_PROXY", "HEARTH_HOLD_SECONDS"}
    (one,) = environment.unknown(["HEARTH_PORTT"])
    assert one.problem == "HEARTH_PORTT is set, and Hearth has no such setting: it has no effect."
    assert "Did you mean HEARTH_PORT?" in one.remedy
