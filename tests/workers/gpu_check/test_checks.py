"""What `hearth gpu-check` finds on fake devices, with simulated engines and the PyTorch of the engine's environment."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from workers import processes
from workers.devices import gpu_report
from workers.devices.cpu import CpuShares
from workers.devices.fake import FakeDevices
from workers.devices.provider import Device, DeviceProvider, Reading
from workers.engines import environment, start_parts, trial
from workers.engines.start_parts import StartParts
from workers.engines.trial import Trials
from workers.gpu_check import engine_checks, run, torch_client
from workers.gpu_check.bench import Bench
from workers.gpu_check.findings import Failed, Finding, Untried

HOLD_BYTES = 2**20
NEEDS_AN_AGENT = ["lease by an agent", "rollout", "eviction by an agent"]


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
        "tensor parallel 2": "untried",
        "promotion to 2 GPUs": "untried",
        "cached tokens": "pass",
        "lease by an agent": "untried",
        "rollout": "untried",
        "eviction by an agent": "untried",
    }
    assert "no model is divided among fake devices; first token after" in found["tensor parallel 2"].text
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
    assert untried == [
        "devices",
        "memory is freed",
        "PyTorch zygote",
        "tensor parallel 2",
        "promotion to 2 GPUs",
        *NEEDS_AN_AGENT,
    ]
    assert not [finding for finding in found.values() if finding.verdict == "fail"]


def test_a_device_with_a_fault_fails_and_one_in_use_is_left_alone(tmp_path: Path) -> None:
    faults = {"fake-0": {"fault": "Xid 79"}, "fake-1": {"wedged": "processes 4711 use it"}}
    found = _found(_fakes(tmp_path, 3, faults), tmp_path)
    assert (found["devices"].verdict, found["devices"].text) == ("fail", "fake-0: Xid 79")
    left = "left alone: fake-0 (Xid 79); fake-1 (processes 4711 use it)"
    assert found["free devices"].text == f"1 free, {left}"
    assert found["tensor parallel 2"].text == "it takes 2 free devices, and there are 1"


def test_without_a_free_device_nothing_is_started(tmp_path: Path) -> None:
    found = _found(_fakes(tmp_path, 1, {"fake-0": {"wedged": "processes 4711 use it"}}), tmp_path)
    assert found["free devices"].text == "none of them is free: fake-0 (processes 4711 use it)"
    assert {finding.verdict for name, finding in found.items() if name != "devices"} == {"untried"}
    assert not list(tmp_path.glob("engine-*"))


def test_a_check_takes_another_device_for_one_that_was_taken_since(tmp_path: Path) -> None:
    provider = _fakes(tmp_path, 2, {"fake-0": {"wedged": "processes 4711 use it"}})
    bench = Bench(provider=provider, python=None, trials=None, free=list(provider.devices()), patience_seconds=0)
    assert bench.device().uuid == "fake-1"
    with pytest.raises(Untried, match=r"it takes 2, and these are in use: fake-0 \(processes 4711 use it\)"):
        bench.devices(2)


def test_a_check_waits_for_what_an_earlier_one_has_left_in_use(tmp_path: Path) -> None:
    provider = _fakes(tmp_path, 1, {"fake-0": {"release_seconds": 0.3}})
    bench = Bench(provider=provider, python=None, trials=None, free=list(provider.devices()))
    assert bench.device().uuid == "fake-0"


def test_a_device_that_somebody_claims_is_left_alone(tmp_path: Path) -> None:
    bench = Bench(
        provider=_fakes(tmp_path, 2),
        python=None,
        trials=Trials("simulated", tmp_path),
        claim_on=lambda device: "process 4711 has it" if device.index == 0 else "",
    )
    found = {finding.check: finding for finding in run.run(bench)}
    assert found["free devices"].text == "1 free, left alone: fake-0 (process 4711 has it)"
    assert [device.uuid for device in bench.free] == ["fake-1"]


def test_no_check_begins_when_the_time_is_over_and_no_engine_is_waited_for(tmp_path: Path) -> None:
    late = ("--startup-seconds", "60")
    began = time.monotonic()
    trials = Trials("simulated", tmp_path, engine_args=late, deadline=began + 0.5)
    bench = Bench(provider=_fakes(tmp_path, 1), python=None, trials=trials, deadline=began + 0.5)
    found = {finding.check: finding for finding in run.run(bench)}
    over = "the time for all checks (--minutes) was over before"
    assert (found["cold start"].verdict, found["cold start"].text) == ("untried", f"{over} an engine had started")
    assert (found["eviction"].verdict, found["eviction"].text) == ("untried", f"{over} it began")


def test_another_process_on_another_device_is_not_the_engines_fault(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as neighbour:
        try:
            provider = _fakes(tmp_path, 2, {"fake-1": {"pid": neighbour.pid}})
            trials = Trials("simulated", tmp_path, longest_start_seconds=30)
            bench = Bench(provider=provider, python=None, trials=trials, free=list(provider.devices()))
            assert engine_checks.cold_start(bench)[0].startswith("first token after")
        finally:
            neighbour.kill()


def test_a_device_is_used_by_a_process_unless_only_others_are_seen_there(tmp_path: Path) -> None:
    ours, other = (processes.launch(["/bin/sleep", "60"], log_path=tmp_path / "log", environment={}) for _ in range(2))
    try:
        faults = {"fake-0": {"pid": ours.pid}, "fake-1": {"pid": other.pid}, "fake-2": {"wedged": "600 MiB in use"}}
        bench = Bench(provider=_fakes(tmp_path, 3, faults), python=None, trials=None)
        found = [bench.used_by(ours, device) for device in bench.provider.devices()]
        assert found == [f"processes {ours.pid} use it", "", "600 MiB in use"]
    finally:
        for each in (ours, other):
            processes.kill_session(each, timeout_seconds=5)


def test_an_error_that_nobody_expected_fails_its_check_and_no_other(tmp_path: Path) -> None:
    def broken(_: Device) -> str:
        raise LookupError("no such thing")

    bench = Bench(provider=_fakes(tmp_path, 1), python=None, trials=None, claim_on=broken)
    found = {finding.check: finding for finding in run.run(bench)}
    assert (found["free devices"].verdict, found["free devices"].text) == ("fail", "LookupError: no such thing")
    assert list(found) == list(run.CHECKS)


def test_a_process_that_has_ended_has_no_memory(tmp_path: Path) -> None:
    living = processes.identify(os.getpid())
    ended = processes.launch(["/bin/true"], log_path=tmp_path / "log", environment={})
    while processes.collect(ended) is None:
        time.sleep(0.01)
    assert living is not None
    assert trial.memory_bytes([ended]) == 0
    assert trial.memory_bytes([living, ended]) > 0


def test_memory_that_stays_in_use_after_a_kill_fails(tmp_path: Path) -> None:
    provider = Slow(1, tmp_path / FakeDevices.FILE)
    bench = Bench(provider=provider, python=None, trials=Trials("simulated", tmp_path), free=list(provider.devices()))
    with pytest.raises(Failed, match="after the engine was killed"):
        engine_checks.cold_start(bench)


def test_the_engines_own_block_size_decides_how_many_tokens_should_be_cached(tmp_path: Path) -> None:
    found = _found(_fakes(tmp_path, 1), tmp_path, engine_args=("--block-size", "512"))["cached tokens"]
    assert found.verdict == "pass"
    prompt, cached = int(found.figures["prompt_tokens"] or 0), found.figures["cached_tokens"]
    assert cached == (prompt - 1) // 512 * 512 != (prompt - 1) // 32 * 32


@pytest.mark.parametrize("cached", [(0, 0, 0), (0, 96, 96), (96, 96, 0), (0, 64, 0)])
def test_other_cached_tokens_than_the_full_blocks_of_the_repetition_fail(cached: tuple[int, ...]) -> None:
    assert engine_checks.judge([(100, 0), (100, 96), (100, 0)], 32)[1]["cached_tokens"] == 96
    with pytest.raises(Failed, match="expected 0, 96, 0"):
        engine_checks.judge([(100, each) for each in cached], 32)


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
    read = gpu_report.parse((tmp_path / "report.json").read_bytes())
    assert [(each.check, each.verdict) for each in read.checks] == [(each.check, each.verdict) for each in findings]
    assert {gpu_report.PROMOTION, gpu_report.GANG_PROMOTION} <= {each.check for each in read.checks}
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
    assert start_parts.parts(log) == StartParts(load_seconds=4.5, compile_seconds=12.3, warm_up_seconds=11.8)


def test_the_parts_of_a_start_on_a_cpu_are_read_and_what_is_not_there_is_unknown() -> None:
    log = """
    INFO [default_loader.py:502] Loading weights took 0.21 seconds
    INFO [core.py:396] init engine (profile, create kv cache, warmup model) took 9.50 s (compilation: 6.25 s)
    """
    assert start_parts.parts(log) == StartParts(load_seconds=0.21, compile_seconds=6.25, warm_up_seconds=3.25)
    assert start_parts.parts("Model loading took 1 GiB memory and 1.2.3 seconds") == StartParts(load_seconds=0.0)
    assert start_parts.parts("") == StartParts()


class Pretended:
    """A fake device that looks like a GPU."""

    def __init__(self, fakes: FakeDevices) -> None:
        self._fakes = fakes

    def devices(self) -> tuple[Device, ...]:
        """Return the fake devices."""
        return self._fakes.devices()

    def in_use(self, uuid: str) -> str:
        """Return why the fake device is in use."""
        return self._fakes.in_use(uuid)

    def reading(self, uuid: str) -> Reading:
        """Return what the fake device does."""
        return self._fakes.reading(uuid)


@pytest.mark.long
@pytest.mark.real_engine
def test_a_pytorch_that_can_use_no_gpu_says_nothing_about_gpus(tmp_path: Path) -> None:
    python = environment.default()
    if python is None or python.kind is not environment.EngineKind.VLLM_CPU:
        pytest.skip("this machine's PyTorch is built with CUDA")
    bench = Bench(provider=Pretended(_fakes(tmp_path, 1)), python=python.python, trials=None)
    found = {finding.check: finding for finding in run.run(bench)}
    for name in ("memory is freed", "PyTorch zygote"):
        assert found[name].verdict == "untried"
        assert "is built without CUDA; --python names another" in found[name].text


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
