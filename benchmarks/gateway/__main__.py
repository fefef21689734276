"""Measure what a gateway costs: ``python -m benchmarks.gateway`` (``make bench-gateway``). See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks import command, machine
from benchmarks.command import Finding
from benchmarks.errors import NotRun
from benchmarks.gateway import contenders, report, rounds, upstream, workplace
from benchmarks.gateway.contenders import Contender, Up
from benchmarks.gateway.report import Run
from benchmarks.gateway.site import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asks for."""

    rounds: int
    seconds: int
    only: tuple[str, ...]
    publish: bool


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    options = _parse(arguments)
    asked = "python -m benchmarks.gateway " + " ".join(arguments)

    def measure() -> Finding:
        run = _run(options, asked.strip())
        return Finding(date=run.date, text=report.document(run), samples=report.as_json(run))

    return command.conduct("gateway", measure, publish=options.publish)


def _parse(arguments: Sequence[str]) -> Options:
    names = [contender.name for contender in contenders.everything()]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender has its turn (3)")
    parser.add_argument("--seconds", type=int, default=3, help="length of one measurement (3)")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    if given.rounds < 1 or given.seconds < 1:
        parser.error("--rounds and --seconds are at least 1")
    return Options(rounds=given.rounds, seconds=given.seconds, only=tuple(given.only), publish=not given.no_publish)


def _run(options: Options, asked: str) -> Run:
    cores = machine.split_cores()
    machine.require_tools()
    chosen = [contender for contender in contenders.everything() if contender.name in options.only]
    not_run = {}
    with ExitStack() as cleanup, machine.kept_off(cores.contender):
        folder = cleanup.enter_context(workplace.open_folder())
        site = upstream.start(Site(folder=folder, cores=cores, cleanup=cleanup))
        ready: list[tuple[Contender, Up]] = []
        for contender in chosen:
            print(f"Starting {contender.title}", flush=True)
            try:
                ready.append((contender, contenders.start(contender, site)))
            except NotRun as error:
                not_run[contender.title] = error.problem
                print(f"{contender.title}: not run: {error}", file=sys.stderr)
        found_machine = machine.describe(cores)
        figures, lost = rounds.measure(site, ready, rounds=options.rounds, seconds=options.seconds)
        usage_records = _settle(ready)
    return Run(
        command=asked,
        date=time.strftime("%Y-%m-%d"),
        commit=command.commit(),
        machine=found_machine,
        load_generator=" ".join(command.output("wrk", "-v").split()[:2]),
        rounds=options.rounds,
        seconds=options.seconds,
        figures=figures,
        not_run=not_run | lost,
        usage_records=usage_records,
    )


def _settle(ready: Sequence[tuple[Contender, Up]]) -> int | None:
    """Let Hearth's drain finish and return the number of usage records; None when Hearth was not run."""
    for _, up in ready:
        if up.hearth is not None:
            print("Waiting for the drain", flush=True)
            up.resume()
            return up.hearth.usage_records()
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
