"""Publish a run: its text in docs/benchmarks.md, its samples in benchmarks/results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from hearth.paths import ROOT

DOCUMENT = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"


class MarkersMissing(Exception):
    """The document lacks the comments between which the result goes."""


def write(name: str, date: str, text: str, samples: Mapping[str, object]) -> list[Path]:
    """Write both files of a benchmark and return their paths. A later run on the same day replaces an earlier one.

    The text goes between the document's comments ``name: begin`` and ``name: end``. Raises MarkersMissing.
    """
    begin_mark, end_mark = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before = DOCUMENT.read_text()
    start, end = before.find(begin_mark), before.find(end_mark)
    if start < 0 or end < start:
        raise MarkersMissing(f"{DOCUMENT} must hold {begin_mark} and, after it, {end_mark}")
    DOCUMENT.write_text(f"{before[:start]}{begin_mark}\n\n{text}\n\n{before[end:]}")
    RESULTS.mkdir(exist_ok=True)
    results = RESULTS / f"{name}-{date}.json"
    results.write_text(json.dumps(samples, indent=1) + "\n")
    return [results, DOCUMENT]
