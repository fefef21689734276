"""LoRA adapters for the tiny model, made for one test: random weights, which change every answer."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Of the tiny model.
LAYERS, WIDTH = 4, 128
_OUTPUTS = {"q_proj": 128, "v_proj": 64}


def write(
    folder: Path,
    *,
    seed: int = 1,
    rank: int = 8,
    layers: int = LAYERS,
    width: int = WIDTH,
    outputs: Mapping[str, int] = _OUTPUTS,
    **configuration: Any,
) -> Path:
    """Write an adapter as PEFT saves it, and return its folder. ``outputs``: of each module that it changes."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted(outputs),
        "bias": "none",
        "base_model_name_or_path": "",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config | configuration))
    header: dict[str, Any] = {}
    content = bytearray()
    numbers = random.Random(seed)
    for layer in range(layers):
        for module, size in outputs.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for part, shape in (("lora_A", (rank, width)), ("lora_B", (size, rank))):
                values = [numbers.gauss(0, 1) for _ in range(shape[0] * shape[1])]
                begin = len(content)
                content += struct.pack(f"<{len(values)}f", *values)
                header[f"{name}.{part}.weight"] = {
                    "dtype": "F32",
                    "shape": list(shape),
                    "data_offsets": [begin, len(content)],
                }
    raw = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(content))
    return folder
