"""The sizer against real vLLM: how many tokens its cache holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.engines.replica import Client, running
from workers.agent.probes.http_probe import parse_load
from workers.engines.driver import TINY_MODEL
from workers.engines.vllm import CPU_KV_CACHE_GIB
from workers.sizing import model_shape
from workers.sizing.gpus import GIB

#: Another number of layers, heads and sizes than the tiny model's.
OTHER = {
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
    "num_attention_heads": 8,
    "head_dim": 64,
    "hidden_size": 256,
    "intermediate_size": 768,
}


@pytest.mark.long
@pytest.mark.parametrize("changes", [{}, OTHER], ids=["tiny", "other"])
async def test_its_cache_holds_as_many_tokens_as_vllm_reports(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY_MODEL, folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    expected = CPU_KV_CACHE_GIB * GIB / model_shape.read(config).kv_bytes_per_token(2)
    with running("vllm", model_path=str(folder), engine_args=("--load-format", "dummy")) as replica:
        async with aiohttp.ClientSession() as session:
            load = parse_load((await Client(replica, session).get("/metrics")).raw.decode())
    assert load is not None
    assert load.cache_tokens == pytest.approx(expected, rel=0.1)


def test_its_weights_are_as_large_as_their_file() -> None:
    shape = model_shape.read(json.loads((TINY_MODEL / "config.json").read_text()))
    assert shape.weight_bytes == pytest.approx((TINY_MODEL / "model.safetensors").stat().st_size, rel=0.1)
