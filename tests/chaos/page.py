"""Keep the reports of seeds in a file, and write docs/reliability.md's table from them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from hearth.paths import ROOT
from tests.chaos.run import Report

REPORTS = ROOT / "benchmarks" / "results" / "chaos.jsonl"
#: Of two heads: their seeds and their table are apart.
HEADS_REPORTS = REPORTS.with_name("chaos-heads.jsonl")
PAGE = ROOT / "docs" / "reliability.md"


def reports(file: Path) -> list[dict[str, Any]]:
    """Return the reports of the file, in order; none without one."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def append(file: Path, report: Report, **conditions: object) -> None:
    """Add a report and the conditions under which it was made."""
    with file.open("a") as out:
        out.write(json.dumps({**conditions, **asdict(report)}) + "\n")


def write(file: Path) -> None:
    """Write the table of all reports of the file into the page, between the marks with the file's name."""
    before = PAGE.read_text()
    begin = f"<!-- {file.stem}: begin -->"
    start, end = before.index(begin) + len(begin), before.index(f"<!-- {file.stem}: end -->")
    PAGE.write_text(f"{before[:start]}\n\n{table(reports(file))}\n\n{before[end:]}")


def table(found: Iterable[dict[str, Any]]) -> str:
    """Return a paragraph of sums and a table with a line per kind of fault."""
    found = list(found)
    struck = defaultdict(list)
    for report in found:
        for each in report["struck"]:
            struck[each["kind"]].append(each)
    faults = sum(map(len, struck.values()))
    differences = sum(len(report["differences"]) for report in found)
    seeds = ", ".join(str(report["seed"]) for report in found)
    lines = [
        f"{faults:,} faults, {sum(report['requests'] for report in found):,} requests, {differences} differences; "
        f"seeds {seeds}; commits {', '.join(sorted({str(report['commit']) for report in found}))}.",
        "",
        "| fault | times | requests meanwhile | failed | outage, median | outage, longest | all ready again, median |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for kind, each in sorted(struck.items()):
        outages = [fault["outage_seconds"] for fault in each]
        requests, failed = (sum(fault[name] for fault in each) for name in ("requests", "failed"))
        share = f"{failed} ({100 * failed / requests:.1f} %)" if requests else "0"
        ready = median(fault["ready_seconds"] for fault in each)
        lines.append(
            f"| {kind} | {len(each)} | {requests} | {share} | {median(outages):.1f} s | {max(outages):.1f} s"
            f" | {ready:.1f} s |"
        )
    return "\n".join(lines)
