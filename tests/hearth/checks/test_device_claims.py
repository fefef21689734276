"""Which processes of a machine claim a device that its driver shows as free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest

from hearth.checks import device_claims
from tenants.ids import ReplicaId
from workers import processes
from workers.agent.processes.paths import OWNER_VARIABLE, agent_lock
from workers.agent.processes.process_records import EngineRecord, ProcessRecords, ZygoteRecord
from workers.devices.provider import Device
from workers.processes import ProcessIdentity

#: The same in every process that collects the tests, and of no real GPU.
UUID = "GPU-7d1f6c0e-3b52-4a8e-9c41-5e0a7b1d2f93"
OTHER = "GPU-c2a94e17-60d8-4f3b-8b7a-1e95d3f04a68"
#: Of an index that no variable of a test names.
DEVICE = Device(uuid=UUID, index=4711)

Sleeper = Callable[..., ProcessIdentity]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Sleeper]:
    """Return a function that starts a process with an environment; they end with the test."""
    with ExitStack() as stack:

        def start(**environment: str) -> ProcessIdentity:
            process = processes.launch(["/bin/sleep", "60"], log_path=tmp_path / "sleeper.log", environment=environment)
            stack.callback(processes.kill_session, process, timeout_seconds=5)
            return process

        yield start


@pytest.mark.parametrize("value", [UUID, f"{OTHER}, {UUID}", UUID[:12], "3,4711"])
def test_a_process_with_the_device_in_its_variable_claims_it(value: str, sleeper: Sleeper, tmp_path: Path) -> None:
    process = sleeper(CUDA_VISIBLE_DEVICES=value)
    assert device_claims.claim_on(DEVICE, tmp_path) == f"process {process.pid} has it in CUDA_VISIBLE_DEVICES"
    processes.kill_session(process, timeout_seconds=5)
    assert device_claims.claim_on(DEVICE, tmp_path) == ""


@pytest.mark.parametrize("value", ["", ",", "47", OTHER])
def test_a_process_with_other_devices_in_its_variable_does_not(value: str, sleeper: Sleeper, tmp_path: Path) -> None:
    sleeper(CUDA_VISIBLE_DEVICES=value)
    assert device_claims.claim_on(DEVICE, tmp_path) == ""


def test_a_placeholders_and_an_engines_processes_claim_their_devices_while_they_live(
    sleeper: Sleeper, tmp_path: Path
) -> None:
    records = ProcessRecords(tmp_path / "engines", "n1")
    zygote, engine = sleeper(), sleeper()
    records.write(
        ZygoteRecord(
            placeholder_id=uuid4(),
            node="n1",
            fence=1,
            pid=zygote.pid,
            start_ticks=zygote.start_ticks,
            boot_id=processes.boot_id(),
            devices=("fake-0",),
        )
    )
    records.write(
        EngineRecord(
            replica_id=cast(ReplicaId, uuid4()),
            node="n1",
            fence=1,
            generation=1,
            pid=engine.pid,
            start_ticks=engine.start_ticks,
            boot_id=processes.boot_id(),
            port=1,
            devices=("fake-1", "fake-2"),
            begun_at=0.0,
        )
    )
    fakes = [Device(uuid=f"fake-{index}", index=4711) for index in range(4)]
    assert [device_claims.claim_on(device, tmp_path) for device in fakes] == [
        f"process {zygote.pid} of node n1 has it, for its placeholder",
        f"process {engine.pid} of node n1 has it, for its engine",
        f"process {engine.pid} of node n1 has it, for its engine",
        "",
    ]
    processes.kill_session(zygote, timeout_seconds=5)
    assert device_claims.claim_on(fakes[0], tmp_path) == ""


def test_hearth_runs_where_an_agent_holds_its_lock_or_has_left_a_process(sleeper: Sleeper, tmp_path: Path) -> None:
    with agent_lock(tmp_path, "n1").open("w"):
        assert device_claims.hearth_runs(tmp_path)
    sleeper(**{OWNER_VARIABLE: "n1 /elsewhere"})
    assert device_claims.hearth_runs(tmp_path)
