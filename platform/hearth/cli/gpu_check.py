"""`hearth gpu-check`: try on this machine what Hearth does with GPUs."""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from hearth import environment as settings
from hearth.checks import device_claims
from hearth.checks.preflight import PreflightError
from workers.devices import gpu_report
from workers.devices.choice import provider_for
from workers.devices.errors import DeviceError
from workers.engines import environment
from workers.engines.driver import TINY_MODEL
from workers.engines.environment import EngineKind
from workers.engines.trial import Trials
from workers.gpu_check import run, torch_client
from workers.gpu_check.bench import Bench, Kind
from workers.gpu_check.findings import Finding
from workers.gpu_check.throwaway_instance import Served, ThrowawayInstance

#: Written before the checks where Hearth serves on the machine.
SERVES = (
    "Hearth runs on this machine. Cordon the node first (celery -A hearth fleet cordon NODE): else its agent may start "
    "an engine on a GPU while a check uses it, and quarantine that GPU."
)
#: A terminal that closes sends the first, a service manager the second. Engines have sessions of their own, which
#: neither reaches.
ENDING_SIGNALS = (signal.SIGHUP, signal.SIGTERM)
HEARTH = (sys.executable, "-m", "hearth.cli")
#: Of the time for all checks, what the end of the instance may take.
END_SECONDS = 20.0


@click.command(short_help="Try on this machine what Hearth does with GPUs.")
@click.option(
    "--slots", default="auto", show_default=True, help="As HEARTH_SLOTS: auto, a number of CPU shares, fake:N."
)
@click.option(
    "--engine", type=click.Choice(("vllm", "simulated", "none")), default="vllm", show_default=True, help="To start."
)
@click.option("--model", help="Folder of a model for the engine. Default: the tiny model.")
@click.option("--engine-args", default="", help="Further arguments of the engine, quoted as for a shell.")
@click.option("--python", type=click.Path(path_type=Path), help="An interpreter with PyTorch. Default: the engine's.")
@click.option("--hold-gib", type=click.FloatRange(1, 1000), default=1.0, show_default=True, help="To see it freed.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=1),
    default=10.0,
    show_default=True,
    help="Time for all checks. What does not fit is untried; large models need more.",
)
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help=f"Default: {gpu_report.FILE} in HEARTH_DATA_DIR."
)
def gpu_check(
    slots: str,
    engine: str,
    python: Path | None,
    hold_gib: float,
    minutes: float,
    report: Path | None,
    **served_as: Any,
) -> None:
    """Try on this machine what Hearth does with GPUs, print pass, fail or untried, and write a report.

    Only devices that are free before each check are touched, not those of Hearth's engines and placeholders. Cordon a
    node that serves first (celery -A hearth fleet cordon NODE), so that its agent starts nothing on them meanwhile. It
    needs no running instance: for what an agent does it starts one of its own, with servers, ports and a folder that
    nothing else uses, and ends it afterwards. Without vLLM the checks that need only PyTorch are made (--engine none
    leaves the others out); without a GPU those that a CPU can make. `--slots fake:2 --engine simulated` tries the
    check itself. Exit status 1 if a check fails.
    """
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _end)
    deadline = time.monotonic() + minutes * 60 - END_SECONDS
    data_dir = settings.read().data_dir
    path = report or data_dir / gpu_report.FILE
    found: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="hearth-gpu-check-") as folder:
        try:
            provider = provider_for(slots, 1, Path(folder))
        except DeviceError as error:
            raise PreflightError(str(error), "") from error
        served = _served(engine, **served_as)
        instance = ThrowawayInstance(command=HEARTH, served=served, deadline=deadline)
        bench = Bench(
            provider=provider,
            python=python or torch_client.find_python(),
            trials=_trials(served, Path(folder), deadline),
            instance=instance,
            deadline=deadline,
            hold_bytes=int(hold_gib * 2**30),
            claim_on=partial(device_claims.claim_on, data_dir=data_dir),
        )
        version = _version(engine, bench.kind)
        _begin(path, bench, version)
        if device_claims.hearth_runs(data_dir):
            click.echo(SERVES, err=True)
        with instance:
            for finding in run.run(bench):
                found.append(finding)
                run.write(path, bench, version, found, ended=False)
                print(f"{finding.verdict:<8} {finding.check}: {finding.text.rstrip('.')}.", flush=True)
    run.write(path, bench, version, found)
    counts = Counter(finding.verdict for finding in found)
    print(f"Each device is a {bench.kind}; {', '.join(f'{verdict}: {count}' for verdict, count in counts.items())}.")
    print(f"The report is {path}.")
    if counts["fail"]:
        sys.exit(1)


def _served(engine: str, model: str | None, engine_args: str) -> Served:
    """Return what engines serve. Raises BadParameter."""
    try:
        arguments = tuple(shlex.split(engine_args))
    except ValueError as error:
        raise click.BadParameter(f"{error} in {engine_args!r}.", param_hint="--engine-args") from error
    longest = 1800.0 if engine == "vllm" else 60.0
    return Served(engine=engine, model=model or "", engine_args=arguments, longest_start_seconds=longest)


def _trials(served: Served, folder: Path, deadline: float) -> Trials | None:
    """Return what starts engines, None without one to start."""
    installed = served.engine == "simulated" or (served.engine == "vllm" and environment.default() is not None)
    if not installed:
        return None
    return Trials(
        served.engine,
        folder,
        model=served.model or str(TINY_MODEL),
        engine_args=served.engine_args,
        longest_start_seconds=served.longest_start_seconds,
        deadline=deadline,
    )


def _version(engine: str, kind: Kind) -> str:
    """Return the engine with its version. Raises BadParameter for one that cannot run on these devices."""
    installed = environment.default() if engine == "vllm" else None
    if engine == "simulated" and kind == "GPU":
        raise click.BadParameter("The simulated engine uses no GPU; use --slots fake:2.", param_hint="--engine")
    if installed is None:
        return engine
    if refusal := mismatch(installed.kind, kind):
        raise click.BadParameter(refusal, param_hint="--slots")
    return f"{installed.kind} {installed.version}"


def mismatch(build: EngineKind, kind: Kind) -> str:
    """Return why this build of vLLM may not be started for these devices; empty if it may.

    vLLM for CUDA that is given no GPU's UUID takes the machine's first GPU, even if another engine serves on it.
    """
    if build is EngineKind.VLLM and kind != "GPU":
        return "The installed vLLM needs GPUs: use --slots auto, --engine simulated or --engine none."
    if build is EngineKind.VLLM_CPU and kind == "GPU":
        return "The installed vLLM runs on CPUs only: `hearth engine install`, or use --engine none."
    return ""


def _begin(path: Path, bench: Bench, version: str) -> None:
    """Write a report without findings, so that a path that cannot be written is known before the first check."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        run.write(path, bench, version, [], ended=False)
    except OSError as error:
        raise PreflightError(f"The report cannot be written: {error}.", "Name another file with --report.") from error


def _end(number: int, _: object) -> NoReturn:
    """End the command so that what it started ends, too."""
    for each in ENDING_SIGNALS:  # a second one must not break that off
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)
