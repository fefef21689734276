"""How long the parts of an engine's start took, as its log says."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: vLLM's own lines. The later ones are parts of "initialise": it contains compiling and capturing.
_PARTS: Mapping[str, re.Pattern[str]] = {
    "load_seconds": re.compile(r"Model loading took \S+ GiB memory and ([0-9.]+) seconds"),
    "initialise_seconds": re.compile(r"init engine \(profile, create kv cache, warmup model\) took ([0-9.]+)"),
    "compile_seconds": re.compile(r"torch\.compile took ([0-9.]+) s in total"),
    "capture_seconds": re.compile(r"Graph capturing finished in ([0-9.]+) secs"),
}


def read(log: str) -> dict[str, float]:
    """Return the seconds of each part that the log of one start names; of several processes the longest."""
    found = {}
    for name, pattern in _PARTS.items():
        if seconds := [float(each) for each in pattern.findall(log)]:
            found[name] = max(seconds)
    return found
