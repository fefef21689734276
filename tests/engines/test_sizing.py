"""The sizer against real vLLM: how many tokens its cache holds."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.engines.replica import Client, running
from workers.agent.probes.http_probe import parse_load
from workers.engines import environment
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


def assigned(file: Path, name: str) -> ast.expr:
    """Return what a file of vLLM assigns to a name; importing it would start torch."""
    for statement in ast.parse(file.read_text()).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assert isinstance(statement, (ast.Assign, ast.AnnAssign))
            assert statement.value is not None
            return statement.value
    raise AssertionError(f"{file} assigns nothing to {name}")


def texts(found: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(found) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


@pytest.mark.real_engine
def test_vllm_quantises_by_every_method_that_the_sizer_offers() -> None:
    installed = environment.default()
    if installed is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    (package,) = installed.folder.glob("lib/python*/site-packages/vllm")
    shorthands = assigned(package / "config/quantization.py", "_ONLINE_SHORTHANDS")
    assert isinstance(shorthands, ast.Dict)
    dense = {
        each.value
        for each, made in zip(shorthands.keys, shorthands.values, strict=True)
        if isinstance(each, ast.Constant)
        and isinstance(made, ast.Call)
        and any(keyword.arg == "linear" for keyword in made.keywords)
    }
    # vLLM takes "fp8" for fp8_per_tensor, unless the files are quantised
    assert set(model_shape.LOADING_BITS) <= dense | {"fp8"}
    methods = package / "model_executor/layers/quantization/__init__.py"
    assert set(model_shape.LOADING_BITS) <= texts(assigned(methods, "QuantizationMethods"))
    assert not set(model_shape.LOADING_BITS) & texts(assigned(methods, "DEPRECATED_QUANTIZATION_METHODS"))
