"""Run one version's gateway for :mod:`benchmarks.gateway_change` and measure it as asked, a line of JSON each.

It is started by path, with the interpreter of the version to measure, and imports that version's own benchmark: so
each gateway is set up as its commit sets it up. Commands on standard input: ``[traffic number, body bytes or 0,
connections, seconds]``. Replies: ``[requests/s, processor time per request in µs, failures]``. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

from benchmarks import machine
from benchmarks.gateway import contenders, rounds, upstream, workplace
from benchmarks.gateway.closed_loop import Load
from benchmarks.gateway.contenders import Up
from benchmarks.gateway.lineup import running
from benchmarks.gateway.load import Traffic, new_run
from benchmarks.gateway.site import Site

#: Marks replies among whatever else the benchmark prints.
REPLY = "reply: "
WARM_UP_CONNECTIONS = 4


def main() -> None:
    cores = machine.split_cores()
    with ExitStack() as cleanup, machine.kept_on(cores.others):
        folder = cleanup.enter_context(workplace.open_folder())
        site = upstream.start(Site(folder=folder, cores=cores, cleanup=cleanup))
        hearth = next(each for each in contenders.everything() if each.name == contenders.HEARTH)
        up = contenders.start(hearth, site)
        up_to_now: dict[Traffic, str] = {}
        _reply([each.workload for each in hearth.traffics])
        for line in sys.stdin:
            number, body_bytes, connections, seconds = json.loads(line)
            small = hearth.traffics[number]
            traffic = Traffic(small.workload, body_bytes or small.body_bytes)
            with running(up):
                run = _prompts(site, up, traffic, up_to_now)
                sample = rounds.sample(
                    site, up, Load(traffic=traffic, connections=connections, seconds=seconds, run=run)
                )
            _reply([sample.rps, sample.cpu_us_per_request, sample.failures])


def _prompts(site: Site, up: Up, traffic: Traffic, known: dict[Traffic, str]) -> str:
    """Return the mark of prompts that are new or, for repeated ones, already answered."""
    if not traffic.repeats:
        return new_run()
    if traffic not in known:
        known[traffic] = new_run()
        rounds.sample(site, up, Load(traffic=traffic, connections=WARM_UP_CONNECTIONS, seconds=1, run=known[traffic]))
    return known[traffic]


def _reply(value: object) -> None:
    print(f"{REPLY}{json.dumps(value)}", flush=True)


if __name__ == "__main__":
    main()
