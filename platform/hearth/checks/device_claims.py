"""Find who claims a device of this host before its driver shows a use. Does not import Django.

A zygote leases a slot and opens no device; an engine that starts opens none for many seconds. An agent would quarantine
a slot that something else uses in the meantime.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from workers import processes
from workers.agent.processes.paths import OWNER_VARIABLE, agent_lock
from workers.agent.processes.process_records import ProcessRecords
from workers.devices.provider import Device

VARIABLE = "CUDA_VISIBLE_DEVICES"


def claim_on(device: Device, data_dir: Path) -> str:
    """Return which living process an agent started on the device, or names it in CUDA_VISIBLE_DEVICES; empty if none.

    ``data_dir`` is that of the agents. This process and those that it descends from do not count. Of other users'
    processes only root sees the variable.
    """
    records = data_dir / "engines"
    for record in ProcessRecords(records, "").all_nodes() if records.is_dir() else ():
        if device.uuid not in record.devices or record.boot_id != processes.boot_id():
            continue
        if processes.session_members(record.process):
            return f"process {record.pid} of node {record.node} has it, for its {record.kind}"
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process, value in processes.find_by_environment(VARIABLE).items():
        if process.pid not in own and _names(value, device):
            return f"process {process.pid} has it in {VARIABLE}"
    return ""


def hearth_runs(data_dir: Path) -> bool:
    """Return whether an agent runs on this host, or a process that one started."""
    if processes.find_by_environment(OWNER_VARIABLE):
        return True
    return any(processes.find_by_open_file(lock) for lock in data_dir.glob(agent_lock(Path(), "*").name))


def _names(value: str, device: Device) -> bool:
    """Return whether the variable names the device: by its index, its UUID, or the beginning of its UUID."""
    entries = (entry.strip() for entry in value.split(","))
    return any(entry and (entry == str(device.index) or device.uuid.startswith(entry)) for entry in entries)
