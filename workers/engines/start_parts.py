"""How long the parts of an engine's start took, as its log says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: vLLM's own lines. "initialise" contains compiling and capturing. A model runner without the first line, as on CPUs,
#: has the one of the weights' loader.
_PARTS: Mapping[str, re.Pattern[str]] = {
    "load_seconds": re.compile(r"(?:Model loading took \S+ GiB memory and|Loading weights took) ([0-9.]+) seconds"),
    "initialise_seconds": re.compile(r"init engine \(profile, create kv cache, warmup model\) took ([0-9.]+)"),
    "compile_seconds": re.compile(r"(?:torch\.compile took|\(compilation:) ([0-9.]+) s"),
    "capture_seconds": re.compile(r"Graph capturing finished in ([0-9.]+) secs"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartParts:
    """Parts of one start that follow each other. None: the log does not say.

    ``load_seconds``: reading the weights and placing them; ``compile_seconds``: compiling; ``warm_up_seconds``: the
    rest of making the engine ready: profiling, allocating the KV cache, capturing graphs.
    """

    load_seconds: float | None = None
    compile_seconds: float | None = None
    warm_up_seconds: float | None = None


def read(log: str) -> dict[str, float]:
    """Return the seconds of each part that the log of one start names; of several processes the longest."""
    found = {}
    for name, pattern in _PARTS.items():
        if seconds := [_number(each) for each in pattern.findall(log)]:
            found[name] = max(seconds)
    return found


def parts(log: str) -> StartParts:
    """Return the parts of one start that do not overlap."""
    found = read(log)
    compiled, initialised = found.get("compile_seconds"), found.get("initialise_seconds")
    return StartParts(
        load_seconds=found.get("load_seconds"),
        compile_seconds=compiled,
        warm_up_seconds=None if initialised is None else round(max(0.0, initialised - (compiled or 0.0)), 3),
    )


def _number(text: str) -> float:
    """Return the number; 0 for what only looks like one, as engines write their logs."""
    try:
        return float(text)
    except ValueError:
        return 0.0
