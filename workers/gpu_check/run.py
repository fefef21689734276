"""Run the checks in order, and write down what each found."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from workers.devices.errors import DevicesUnreadable
from workers.engines.errors import EngineUnavailable, OutOfTime, TrialFailed
from workers.gpu_check import device_checks, engine_checks, fleet_checks
from workers.gpu_check.bench import Bench
from workers.gpu_check.device_checks import Passed
from workers.gpu_check.findings import Failed, Finding, Untried

#: In this order: later ones take longer, and need what earlier ones show.
CHECKS: dict[str, Callable[[Bench], Passed]] = {
    "devices": device_checks.devices,
    "free devices": device_checks.free_devices,
    "memory is freed": device_checks.memory_is_freed,
    "PyTorch zygote": device_checks.torch_zygote,
    "cold start": engine_checks.cold_start,
    "promotion": engine_checks.promotion,
    "eviction": engine_checks.eviction,
    "tensor parallel 2": engine_checks.tensor_parallel,
    "promotion to 2 GPUs": engine_checks.gang_promotion,
    "cached tokens": engine_checks.cached_tokens,
    "lease by an agent": fleet_checks.lease,
    "rollout": fleet_checks.rollout,
    "eviction by an agent": fleet_checks.eviction,
}


def run(bench: Bench) -> Iterator[Finding]:
    """Yield what each check finds, as soon as it has."""
    for name, check in CHECKS.items():
        if time.monotonic() > bench.deadline:
            yield Finding(check=name, verdict="untried", text=str(OutOfTime("it began")))
        else:
            yield made(name, check, bench)


def write(path: Path, bench: Bench, engine: str, findings: Sequence[Finding], *, ended: bool = True) -> None:
    """Write the report as JSON; agents send on one of a run that ``ended``. Raises OSError."""
    report = {
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"host": platform.node(), "kernel": platform.release(), "processor": platform.machine()},
        "devices": bench.kind,
        "engine": engine,
        "ended": ended,
        "checks": [asdict(each) for each in findings],
    }
    path.write_text(json.dumps(report, indent=2) + "\n")


def made(name: str, check: Callable[[Bench], Passed], bench: Bench) -> Finding:
    """Make one check and return what it found, whatever happens."""
    try:
        text, figures = check(bench)
    except (Untried, EngineUnavailable, OutOfTime) as reason:
        return Finding(check=name, verdict="untried", text=str(reason))
    except Failed as failure:
        return Finding(check=name, verdict="fail", text=str(failure), figures=failure.figures)
    except TrialFailed as error:
        return Finding(check=name, verdict="fail", text=error.problem, log=error.log)
    except (DevicesUnreadable, OSError) as error:
        return Finding(check=name, verdict="fail", text=str(error))
    except Exception as error:  # one check that goes wrong must not cost the others and the report
        return Finding(check=name, verdict="fail", text=f"{type(error).__name__}: {error}")
    return Finding(check=name, verdict="pass", text=text, figures=figures)
