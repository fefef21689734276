"""Write a run down: its document into docs/benchmarks.md, its samples into benchmarks/results."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.gateway import report
from benchmarks.gateway.report import Run
from hearth import env

DOCUMENT = env.ROOT / "docs" / "benchmarks.md"
RESULTS = env.ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- gateway: begin -->", "<!-- gateway: end -->"


class MarkersMissing(Exception):
    """The document has no place for the result."""


def publish(run: Run, text: str) -> list[Path]:
    """Write both files and return them; of several runs on one day the last one stays. Raises MarkersMissing."""
    before = DOCUMENT.read_text()
    start, end = before.find(BEGIN), before.find(END)
    if start < 0 or end < start:
        raise MarkersMissing(f"{DOCUMENT} must hold {BEGIN} and, after it, {END}")
    DOCUMENT.write_text(f"{before[:start]}{BEGIN}\n\n{text}\n\n{before[end:]}")
    RESULTS.mkdir(exist_ok=True)
    results = RESULTS / f"gateway-{run.date}.json"
    results.write_text(json.dumps(report.as_json(run), indent=1) + "\n")
    return [results, DOCUMENT]
