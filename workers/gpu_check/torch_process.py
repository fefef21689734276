"""Use a device through PyTorch, as an engine would: ``python torch_process.py plain|zygote|hold …``

Run by its file's path in an interpreter that has PyTorch and need not have Hearth's packages. ``plain`` imports torch
and computes once. ``zygote`` imports torch, waits for a line with the device, forks, and only the child opens it
and holds memory. ``hold`` opens the device and holds memory until it is killed. Each writes lines of JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SIZE = 256


def main() -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("plain", "zygote", "hold"))
    parser.add_argument("--device", default="", help="UUID of a GPU; empty: the CPU")
    parser.add_argument("--bytes", type=int, default=2**30, help="to hold")
    given = parser.parse_args()
    began = time.monotonic()
    torch = importlib.import_module("torch")
    say(
        event="imported",
        seconds=time.monotonic() - began,
        version=torch.__version__,
        threads=threads(),
        cuda=torch.backends.cuda.is_built(),  # opens nothing, unlike torch.cuda.is_available
    )
    if given.mode == "zygote":
        wait(torch, given.bytes)
    elif given.mode == "hold":
        hold(torch, given.device, given.bytes)
    else:
        compute(torch, given.device)


def wait(torch: Any, size: int) -> None:
    """Fork for the first line of input, which names the device; the child uses it, and the parent waits for it."""
    device = sys.stdin.readline().strip()
    say(event="promoted", opened=torch.cuda.is_initialized())
    child = os.fork()
    if child == 0:
        compute(torch, device)
        # Where NVML lists no processes, as in a container, only memory shows that a GPU is in use.
        hold(torch, device, size)
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


def compute(torch: Any, device: str) -> None:
    """Multiply two matrices on the device and check the result."""
    place = choose(device)
    product = torch.ones(SIZE, SIZE, device=place) @ torch.ones(SIZE, SIZE, device=place)
    say(event="computed", correct=bool((product == SIZE).all()), name=name_of(torch, place))


def hold(torch: Any, device: str, size: int) -> None:
    """Fill memory of the device, and wait to be killed."""
    place = choose(device)
    held = torch.zeros(size, dtype=torch.uint8, device=place)
    held.fill_(1)
    say(event="holds", bytes=held.numel(), name=name_of(torch, place))
    while True:
        time.sleep(3600)


def choose(device: str) -> str:
    """Return torch's name of the device. CUDA reads the variable when it is first used, not when torch is imported."""
    if device:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    return "cuda" if device else "cpu"


def name_of(torch: Any, place: str) -> str:
    """Return the name of a GPU's model, or ``cpu``."""
    return str(torch.cuda.get_device_name(0)) if place == "cuda" else place


def threads() -> int:
    """Return how many threads this process has: a fork copies only one."""
    return len(os.listdir("/proc/self/task")) if Path("/proc/self/task").is_dir() else 0


def say(**line: Any) -> None:
    """Write a line with the time, on the clock that all processes of the machine share."""
    print(json.dumps({**line, "at": time.monotonic()}), flush=True)


if __name__ == "__main__":
    main()
