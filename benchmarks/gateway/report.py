"""Turn the findings of a run into one document: the conditions, the tables, and what they say of Hearth."""

from __future__ import annotations

from benchmarks.gateway import glance, latency_tables, tables, throughput_tables, verdict
from benchmarks.gateway.contenders import DIRECT
from benchmarks.gateway.findings import Run
from benchmarks.gateway.load import HITS, NEW
from benchmarks.gateway.plan import BUSY_CONNECTIONS

#: Below this share of its core something else was the limit.
BUSY_CORE = 0.9
QUIET_MACHINE = 0.05


def document(run: Run) -> str:
    """Return the Markdown between the markers of docs/benchmarks.md."""
    streams = run.plan.stream_connections
    sections = {
        "At a glance": glance.table(run),
        "Whole answers of 1 KB": throughput_tables.whole(run),
        f"Streams of 64 events, {streams} connections": throughput_tables.streams(run),
        f"Larger requests, {run.plan.larger_connections} connections": throughput_tables.larger(run),
        "Latency at a constant rate": latency_tables.steady(run),
        "Two processes": throughput_tables.pairs(run),
        f"{run.plan.idle_streams:,} idle streams": latency_tables.idle(run),
        "The ladder": throughput_tables.ladder(run),
        "Targets": verdict.targets(run),
        "Where Hearth is behind": verdict.behind(run),
        "Checks": _checks(run),
    }
    return "\n\n".join([_conditions(run), *(f"### {title}\n\n{text}" for title, text in sections.items())])


def _conditions(run: Run) -> str:
    machine, plan = run.machine, run.plan
    lines = [
        f"`{run.command}` on {run.date}, commit {run.commit}, {run.minutes:.1f} minutes.",
        f"{machine.described}.",
        f"Closed loop: {run.load_generator}, bodies of 1 KB in {plan.rounds} round(s), "
        f"{plan.seconds} s each (short streams {plan.stream_windows * plan.seconds} s), larger ones once for "
        f"{plan.larger_seconds} s; a cell is the median [lowest–highest] of the rounds.",
        f"Open loop: {plan.open_seconds} to {plan.longest_open_seconds} s per rate after 1 s of warm-up. On the cores "
        f"that it shares with the upstream its generator is punctual up to {run.open_loop_limit:,} requests/s.",
    ]
    if not run.open_loop_limit:
        lines.append("**The open loop was left out: the machine is too busy for its generator.**")
    if run.second_core_is_shared:
        lines.append(
            "Two processes had both cores and shared one of them with upstream, load generator, Redis, PostgreSQL and "
            "drain: read the processor time, not the rate."
        )
    if machine.busy_share > QUIET_MACHINE:
        lines.append(
            f"**Not a quiet machine: other programs used {machine.busy_share:.0%} of its cores just before. "
            "Do not quote these figures.**"
        )
    lines.extend(f"{title}: not measured: {why}." for title, why in run.not_run.items())
    return tables.bullets(lines)


def _checks(run: Run) -> str:
    lines = []
    for figures in run.figures.values():
        if figures.failures():
            lines.append(f"{figures.contender.title}: {figures.failures():,} requests of the closed loop failed.")
        busy = figures.median(NEW, BUSY_CONNECTIONS, lambda sample: sample.core_share)
        if figures.contender.name != DIRECT and busy is not None and busy < BUSY_CORE:
            lines.append(
                f"{figures.contender.title} used {busy:.0%} of its core at 64 connections: something else held it back."
            )
    lines.extend(
        f"{run.title(each.name)} at {each.arrivals.rate:,}/s: of {each.arrivals.due:,} requests "
        f"{each.arrivals.refused:,} refused, {each.arrivals.broken:,} cut, {each.arrivals.unanswered:,} unanswered."
        for each in run.steady
        if each.arrivals.failed
    )
    lines.extend(
        f"{run.title(name)} opened {each.opened:,} of {run.plan.idle_streams:,} idle streams."
        for name, each in run.idle.items()
        if each.opened < run.plan.idle_streams
    )
    return tables.bullets([*lines, *_hearths_checks(run)]) or "Nothing to say."


def _hearths_checks(run: Run) -> list[str]:
    hearth = run.hearth
    if hearth is None:
        return []
    lines = []
    missed = hearth.over_rounds(HITS, BUSY_CONNECTIONS, lambda sample: sample.upstream_share)
    if missed is not None:
        lines.append(f"Of the requests that were prediction hits before, at most {missed.high:.1%} asked the upstream.")
    if run.usage_records is not None:
        lines.append(
            f"After the closed loop Hearth had answered {run.requests_recorded:,} requests and its database had "
            f"{run.usage_records:,} usage records (more, because the load generator leaves some requests unanswered "
            "when its time is up)."
        )
    return lines
