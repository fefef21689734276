"""What an operator sets of an engine by name, as a revision stores it. Everything else is a raw argument.

Pure: commands and the API check it, and ``workers.engines.options`` writes it as the engine's arguments.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tenants.errors import BadName

#: The engine's own choice, or that of the model's files.
AUTO = "auto"
#: Names that engines have; which of them it knows, the engine's own parser decides.
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
MOST_HOST_MEMORY_GIB = 65_536
MOST_STAGES = 16
MOST_ADAPTERS = 1024
MOST_RANK = 512


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an engine; the defaults leave each to the engine."""

    #: The type of the KV cache's values, as ``fp8``.
    kv_dtype: str = AUTO
    #: How the weights are quantised, in their files or when they are loaded.
    quantization: str = AUTO
    #: The host's memory for KV blocks that the device evicts, of all of a replica's slots; 0: none.
    host_memory_gib: int = 0
    #: Stages that the layers are divided into, on one node. Each stage has slots / stages GPUs, tensor parallel.
    pipeline_parallel: int = 1
    #: LoRA adapters that one batch may use; 0: none.
    lora_adapters: int = 0
    #: The largest rank of such an adapter.
    lora_rank: int = 16


DEFAULT = EngineOptions()
#: The smallest and largest number of each option that is one.
BOUNDS = {
    "host_memory_gib": (0, MOST_HOST_MEMORY_GIB),
    "pipeline_parallel": (1, MOST_STAGES),
    "lora_adapters": (0, MOST_ADAPTERS),
    "lora_rank": (1, MOST_RANK),
}


def check(options: EngineOptions, *, slots: int) -> EngineOptions:
    """Return valid options of a replica that takes ``slots``. Raises BadName."""
    for name in ("kv_dtype", "quantization"):
        if not _NAME.fullmatch(value := getattr(options, name)):
            raise BadName(name, value, "a name that the engine knows, as fp8, or auto")
    for name, (least, most) in BOUNDS.items():
        if not least <= (number := getattr(options, name)) <= most:
            raise BadName(name, str(number), f"{least} to {most}")
    if slots % options.pipeline_parallel:
        stages = [str(each) for each in range(1, slots + 1) if slots % each == 0]
        allowed = f"{' or '.join(stages)}, because each stage takes as many of the {slots} slots of a replica"
        raise BadName("pipeline_parallel", str(options.pipeline_parallel), allowed)
    if options.lora_rank != DEFAULT.lora_rank and not options.lora_adapters:
        raise BadName("lora_rank", str(options.lora_rank), "it together with lora_adapters")
    return options


def to_json(options: EngineOptions) -> dict[str, Any]:
    """Return the options that are not the default."""
    # Not msgspec's omit_defaults, which compares by identity: "auto" from a request is another object.
    default = msgspec.structs.asdict(DEFAULT)
    return {name: value for name, value in msgspec.structs.asdict(options).items() if value != default[name]}


def from_json(stored: dict[str, Any]) -> EngineOptions:
    """Return the options of a revision."""
    return msgspec.convert(stored, EngineOptions)
