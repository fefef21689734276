"""What `hearth up` and `hearth bootstrap` deploy, and the file in the data directory that remembers it.

An option that is not given keeps its value of the last start, so that a start without options changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

EngineChoice = Literal["auto", "vllm", "simulated"]
PlaceholderLevel = Literal["h0", "h2"]
PoolKind = Literal["auto", "cpu", "gpu"]

#: The options of the last start, in the data directory.
FILE_NAME = "asked.json"

#: Two, so that affinity and failover can be seen.
DEFAULT_REPLICAS = 2
#: One, so that a lost replica is back in seconds.
DEFAULT_PLACEHOLDERS = 1
#: The warmest: it costs only the memory of a waiting process.
DEFAULT_LEVEL: PlaceholderLevel = "h2"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """The pool that a new node joins; it is created if it does not exist.

    An empty ``pool`` means `local-cpu` or `local-gpu`. Kind ``auto`` means gpu where there is /dev/nvidia0.
    """

    pool: str = ""
    pool_kind: PoolKind = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """The options of one start. None: the value of the last start; at the first start, the default."""

    engine: EngineChoice | None = None
    #: A Hugging Face id or a folder; empty: the tiny chat model in the repository.
    model: str | None = None
    context_tokens: int | None = None
    replicas: int | None = None
    placeholders: int | None = None
    placeholder_level: PlaceholderLevel | None = None
    new_node: PoolOptions = field(default_factory=PoolOptions)

    def arguments(self) -> list[str]:
        """Return the options as arguments of `hearth up`."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "new_node"}
        given |= {"pool": self.new_node.pool or None, "pool_kind": self.new_node.pool_kind}
        return [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]


def read_last(data_dir: Path) -> dict[str, Any]:
    """Return the options of the last start; empty before the first. Raises ValueError for a file that is not JSON."""
    file = data_dir / FILE_NAME
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return found


def cpu_slots(data_dir: Path) -> int:
    """Return the slots of a node without GPUs: one for each replica and each placeholder of the last start."""
    last = read_last(data_dir)
    return int(last.get("replicas", DEFAULT_REPLICAS)) + int(last.get("placeholders", DEFAULT_PLACEHOLDERS))
