"""`hearth gpu-check`: try on this machine what Hearth does with GPUs."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click

from hearth import environment as settings
from hearth.checks.preflight import PreflightError
from workers.devices.choice import provider_for
from workers.devices.errors import DeviceError
from workers.engines import environment
from workers.engines.driver import TINY_MODEL
from workers.engines.trial import Trials
from workers.gpu_check import run, torch_client
from workers.gpu_check.bench import Bench
from workers.gpu_check.findings import Finding

REPORT = "gpu-check.json"


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
@click.option("--hold-gib", type=click.FloatRange(0.01, 1000), default=1.0, show_default=True, help="To see it freed.")
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help=f"Default: {REPORT} in HEARTH_DATA_DIR."
)
def gpu_check(
    slots: str,
    engine: str,
    model: str | None,
    engine_args: str,
    python: Path | None,
    hold_gib: float,
    report: Path | None,
) -> None:
    """Try on this machine what Hearth does with GPUs, print pass, fail or untried, and write a report.

    Only devices that nobody uses are touched, so a node may serve meanwhile. It needs no running instance. Without vLLM
    the checks that need only PyTorch are made (--engine none leaves the others out); without a GPU those that a CPU can
    make. `--slots fake:2 --engine simulated` tries the check itself. Exit status 1 if a check fails.
    """
    path = report or settings.read().data_dir / REPORT
    found: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="hearth-gpu-check-") as folder:
        try:
            provider = provider_for(slots, 1, Path(folder))
        except DeviceError as error:
            raise PreflightError(str(error), "") from error
        bench = Bench(
            provider=provider,
            python=python or torch_client.find_python(),
            trials=_trials(engine, Path(folder), model, engine_args),
            hold_bytes=int(hold_gib * 2**30),
        )
        for finding in run.run(bench):
            print(f"{finding.verdict:<8} {finding.check}: {finding.text}.", flush=True)
            found.append(finding)
    path.parent.mkdir(parents=True, exist_ok=True)
    run.write(path, bench, _version(engine), found)
    counts = Counter(finding.verdict for finding in found)
    print(f"Each device is a {bench.kind}; {', '.join(f'{verdict}: {count}' for verdict, count in counts.items())}.")
    print(f"The report is {path}.")
    if counts["fail"]:
        sys.exit(1)


def _trials(engine: str, folder: Path, model: str | None, engine_args: str) -> Trials | None:
    """Return what starts engines, None without one to start."""
    installed = engine == "simulated" or (engine == "vllm" and environment.status() is not None)
    if not installed:
        return None
    try:
        arguments = shlex.split(engine_args)
    except ValueError as error:
        raise click.BadParameter(f"{error} in {engine_args!r}.", param_hint="--engine-args") from error
    longest = 1800.0 if engine == "vllm" else 60.0
    return Trials(engine, folder, model=model or str(TINY_MODEL), engine_args=arguments, longest_start_seconds=longest)


def _version(engine: str) -> str:
    installed = environment.status() if engine == "vllm" else None
    return f"{installed.kind} {installed.vllm_version}" if installed is not None else engine
