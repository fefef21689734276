"""What `hearth gpu-check` finds on fake devices, with simulated engines and the PyTorch of the engine's environment."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from workers.devices.cpu import CpuShares
from workers.devices.fake import FakeDevices
from workers.devices.provider import DeviceProvider
from workers.engines import start_parts
from workers.engines.trial import Trials
from workers.gpu_check import engine_checks, run, torch_client
from workers.gpu_check.bench import Bench
from workers.gpu_check.findings import Failed, Finding

HOLD_BYTES = 2**20


def _found(
    provider: DeviceProvider, folder: Path, *, torch: bool = False, engine_args: tuple[str, ...] = ()
) -> dict[str, Finding]:
    bench = Bench(
        provider=provider,
        python=torch_client.find_python() if torch else None,
        trials=Trials("simulated", folder, engine_args=engine_args, longest_start_seconds=30),
        hold_bytes=HOLD_BYTES,
    )
    return {finding.check: finding for finding in run.run(bench)}


def _fakes(folder: Path, count: int, faults: object = None) -> FakeDevices:
    path = folder / FakeDevices.FILE
    if faults is not None:
        path.write_text(json.dumps(faults))
    return FakeDevices(count, path)


class Slow(FakeDevices):
    """Devices that stay in use for a while after their process has ended, as a stuck driver leaves them."""

    _freed_at: float = 0.0

    def in_use(self, uuid: str) -> str:
        """Return what uses the device, or used it less than 3 s ago."""
        if why := super().in_use(uuid):
            self._freed_at = time.monotonic() + 3
        return why or ("its memory is being released" if time.monotonic() < self._freed_at else "")


def test_every_check_of_engines_passes_on_fake_devices(tmp_path: Path) -> None:
    found = _found(_fakes(tmp_path, 2), tmp_path)
    assert {name: finding.verdict for name, finding in found.items()} == {
        "devices": "pass",
        "free devices": "pass",
        "memory is freed": "untried",
        "PyTorch zygote": "untried",
        "cold start": "pass",
        "promotion": "pass",
        "eviction": "pass",
        "tensor parallel 2": "pass",
        "cached tokens": "pass",
    }
    figures = found["cached tokens"].figures
    assert figures["cached_tokens"] == figures["expected_cached_tokens"] != 0


@pytest.mark.long
@pytest.mark.real_engine
def test_pytorch_is_tried_on_a_fake_device_but_for_the_gpu_that_it_would_open(tmp_path: Path) -> None:
    found = _found(_fakes(tmp_path, 1), tmp_path, torch=True)
    assert (found["memory is freed"].verdict, found["memory is freed"].figures["held_bytes"]) == ("pass", HOLD_BYTES)
    assert found["PyTorch zygote"].verdict == "untried"
    assert "there is no GPU to open after the fork; promoted to a first result in" in found["PyTorch zygote"].text


def test_on_a_cpu_what_needs_a_gpu_is_untried(tmp_path: Path) -> None:
    found = _found(CpuShares(1), tmp_path)
    untried = [name for name, finding in found.items() if finding.verdict == "untried"]
    assert untried == ["devices", "memory is freed", "PyTorch zygote", "tensor parallel 2"]
    assert not [finding for finding in found.values() if finding.verdict == "fail"]


def test_a_device_with_a_fault_fails_and_one_in_use_is_left_alone(tmp_path: Path) -> None:
    faults = {"fake-0": {"fault": "Xid 79"}, "fake-1": {"wedged": "processes 4711 use it"}}
    found = _found(_fakes(tmp_path, 3, faults), tmp_path)
    assert (found["devices"].verdict, found["devices"].text) == ("fail", "fake-0: Xid 79")
    left = "left alone: fake-0 (Xid 79); fake-1 (processes 4711 use it)"
    assert found["free devices"].text == f"1 free, {left}"
    assert found["tensor parallel 2"].text == "it takes two free devices, and there are 1"


def test_without_a_free_device_nothing_is_started(tmp_path: Path) -> None:
    found = _found(_fakes(tmp_path, 1, {"fake-0": {"wedged": "processes 4711 use it"}}), tmp_path)
    assert found["free devices"].text == "none of them is free: fake-0 (processes 4711 use it)"
    assert {finding.verdict for name, finding in found.items() if name != "devices"} == {"untried"}
    assert not list(tmp_path.glob("engine-*"))


def test_memory_that_stays_in_use_after_a_kill_fails(tmp_path: Path) -> None:
    provider = Slow(1, tmp_path / FakeDevices.FILE)
    bench = Bench(provider=provider, python=None, trials=Trials("simulated", tmp_path), free=list(provider.devices()))
    with pytest.raises(Failed, match="after the engine was killed"):
        engine_checks.cold_start(bench)


def test_an_engine_that_caches_other_blocks_than_expected_fails(tmp_path: Path) -> None:
    found = _found(_fakes(tmp_path, 1), tmp_path, engine_args=("--block-size", "512"))
    assert found["cached tokens"].verdict == "fail"
    assert found["cached tokens"].figures["cached_tokens"] != found["cached tokens"].figures["expected_cached_tokens"]


def test_an_engine_that_does_not_start_fails_with_the_end_of_its_log(tmp_path: Path) -> None:
    found = _found(_fakes(tmp_path, 1), tmp_path, engine_args=("--no-such-flag",))
    assert found["cold start"].text == "An engine did not start."
    assert "unrecognized arguments: --no-such-flag" in found["cold start"].log


def test_the_report_has_every_check_with_its_figures(tmp_path: Path) -> None:
    bench = Bench(provider=_fakes(tmp_path, 1), python=None, trials=None)
    findings = list(run.run(bench))
    run.write(tmp_path / "report.json", bench, "none", findings)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["devices"] == "fake device"
    assert [(each["check"], each["verdict"]) for each in report["checks"]] == [
        (finding.check, finding.verdict) for finding in findings
    ]
    assert report["checks"][4]["text"] == "no engine to start; `hearth engine install` installs vLLM"


def test_the_parts_of_a_start_are_read_from_the_lines_that_vllm_writes() -> None:
    log = """
    (Worker_TP0 pid=1) INFO [gpu_model_runner.py:5150] Model loading took 7.64 GiB memory and 3.250000 seconds
    (Worker_TP1 pid=2) INFO [gpu_model_runner.py:5150] Model loading took 7.64 GiB memory and 4.500000 seconds
    INFO [monitor.py:20] torch.compile took 12.30 s in total
    INFO [gpu_model_runner.py:6582] Graph capturing finished in 5 secs, took 0.62 GiB
    INFO [core.py:403] init engine (profile, create kv cache, warmup model) took 24.10 s
    """
    assert start_parts.read(log) == {
        "load_seconds": 4.5,
        "initialise_seconds": 24.1,
        "compile_seconds": 12.3,
        "capture_seconds": 5.0,
    }


@pytest.mark.long
@pytest.mark.real_engine
def test_real_vllm_passes_on_a_cpu_what_a_cpu_can_show(tmp_path: Path) -> None:
    bench = Bench(provider=CpuShares(1), python=torch_client.find_python(), trials=Trials("vllm", tmp_path))
    found = {finding.check: finding for finding in run.run(bench)}
    assert {name for name, finding in found.items() if finding.verdict == "pass"} == {
        *("free devices", "cold start", "promotion", "eviction", "cached tokens")
    }
    assert not [finding for finding in found.values() if finding.verdict == "fail"]
    assert float(found["cold start"].figures["initialise_seconds"] or 0) > 0
