"""What `hearth gpu-check` finds with an agent: on an instance of its own that leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hearth import process_records
from hearth.cli.gpu_check import HEARTH
from tests.hearth.instances import wait_for
from workers import processes
from workers.agent.processes.process_records import ProcessRecords
from workers.devices.cpu import CpuShares
from workers.devices.fake import FakeDevices
from workers.devices.provider import Device, DeviceProvider
from workers.engines.errors import TrialFailed
from workers.engines.trial import Trials
from workers.gpu_check import run
from workers.gpu_check.bench import Bench
from workers.gpu_check.findings import Finding
from workers.gpu_check.steady_load import steady_load
from workers.gpu_check.throwaway_instance import NODE, Served, ThrowawayInstance

#: For an instance to start, and to end, on a machine that does much else.
PATIENCE_SECONDS = 240
CHECKS = ("lease by an agent", "rollout", "eviction by an agent")


@pytest.fixture(name="place", autouse=True)
def _place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder in which instances make theirs. Another user may enter it, as embedded servers must."""
    tmp_path_factory.getbasetemp()  # the tests' own folder is not in it
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        Path(folder).chmod(0o711)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def _processes(place: Path) -> list[str]:
    """Return the folders that processes still have as that of their instance."""
    return [each for each in processes.find_by_environment("HEARTH_DATA_DIR").values() if Path(each).parent == place]


def _found(provider: DeviceProvider, folder: Path, served: Served, free: list[Device]) -> dict[str, Finding]:
    """Make the three checks alone, on these devices."""
    with ThrowawayInstance(command=HEARTH, served=served) as instance:
        bench = Bench(
            provider=provider, python=None, trials=Trials(served.engine, folder), instance=instance, free=free
        )
        return {name: run.made(name, run.CHECKS[name], bench) for name in CHECKS}


def _expect_passes(found: dict[str, Finding], *, slots: int) -> None:
    assert [(each.verdict, each.text) for each in found.values() if each.verdict != "pass"] == []
    assert {found[name].figures["slots"] for name in CHECKS[:2]} == {slots}
    rollout = found["rollout"].figures
    assert int(rollout["requests"] or 0) > 0 and rollout["failed_requests"] == 0


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [2, 1])
def test_an_agent_leases_replaces_and_evicts_on_the_devices_that_are_free_alone(
    count: int, tmp_path: Path, place: Path
) -> None:
    provider = FakeDevices(3, tmp_path / FakeDevices.FILE)
    free = list(provider.devices())[-count:]  # somebody claims the others
    found = _found(provider, tmp_path, Served(engine="simulated", longest_start_seconds=PATIENCE_SECONDS), free)
    _expect_passes(found, slots=count)
    devices = {found[name].figures["device"] for name in ("lease by an agent", "eviction by an agent")}
    assert devices <= {device.uuid for device in free}
    assert (list(place.iterdir()), _processes(place)) == ([], [])


@pytest.mark.long
@pytest.mark.real_engine
@pytest.mark.timeout(2400)
def test_real_vllm_is_leased_replaced_and_evicted_on_a_cpu(tmp_path: Path) -> None:
    provider = CpuShares(1)
    found = _found(provider, tmp_path, Served(engine="vllm", longest_start_seconds=600), list(provider.devices()))
    _expect_passes(found, slots=2)


def test_an_instance_that_does_not_start_fails_one_check_and_leaves_the_others_untried(
    tmp_path: Path, place: Path
) -> None:
    provider = FakeDevices(1, tmp_path / FakeDevices.FILE)
    with ThrowawayInstance(command=("/bin/ls", "--no-such"), served=Served(engine="simulated")) as instance:
        bench = Bench(
            provider=provider,
            python=None,
            trials=Trials("simulated", tmp_path),
            instance=instance,
            free=list(provider.devices()),
        )
        found = [run.made(name, run.CHECKS[name], bench) for name in CHECKS]
    assert [each.verdict for each in found] == ["fail", "untried", "untried"]
    assert found[0].text == "The instance did not start." and "unrecognized option" in found[0].log
    assert found[1].text == 'it takes what "lease by an agent" starts'
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("whole", "streamed", "failures"),
    [
        ('{"choices": []}', 'data: {"choices": []}\n\ndata: [DONE]\n\n', set()),
        (
            "{}",
            'data: {"choices": []}\n\n',
            {"an answer was '{}'", """a stream ended with 'data: {"choices": []}\\n\\n'"""},
        ),
        ("", 'data: {"error": {}}\n\ndata: [DONE]\n\n', {"HTTP 503. no replica", "a stream ended with"}),
    ],
)
def test_a_request_without_a_whole_answer_is_a_failure(whole: str, streamed: str, failures: set[str]) -> None:
    def complete(body: Mapping[str, object], _: float) -> str:
        if body["stream"]:
            return streamed
        if not whole:
            raise TrialFailed("HTTP 503.", "no replica")
        return whole

    with steady_load(complete) as load:
        wait_for(lambda: load.answered >= 8)
    assert load.unfinished == 0
    assert {each for each in failures if not any(found.startswith(each) for found in load.failures)} == set()
    assert bool(load.failures) is bool(failures)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_a_killed_supervisor_leaves_is_ended_too(place: Path) -> None:
    with ThrowawayInstance(
        command=HEARTH, served=Served(engine="simulated", longest_start_seconds=PATIENCE_SECONDS)
    ) as instance:
        instance.start("fake:1", 1)
        (folder,) = place.glob("hearth-gpu-check-*")
        engines = [record.process for record in ProcessRecords(folder / "engines", NODE).records()]
        supervisor = process_records.read_record(folder / "supervisor.json")
        assert engines and supervisor is not None
        processes.send_signal(supervisor, signal.SIGKILL)
    assert [each for each in engines if processes.session_members(each)] == []
    assert (list(place.iterdir()), _processes(place)) == ([], [])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_the_instance_too(number: signal.Signals, tmp_path: Path, place: Path) -> None:
    arguments = ["--slots", "fake:1", "--engine", "simulated", "--python", "/bin/false"]
    line = [*HEARTH, "gpu-check", *arguments, "--report", str(tmp_path / "report.json")]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as check:
        try:
            wait_for(lambda: bool(list(place.glob("*/run/agent.json"))), timeout_seconds=PATIENCE_SECONDS)
        finally:
            check.send_signal(number)
        check.wait(120)
    wait_for(lambda: _processes(place) == [], timeout_seconds=PATIENCE_SECONDS)
    if number != signal.SIGKILL:  # then nobody is left to remove the folder
        assert list(place.iterdir()) == []
