"""How many GPUs a model takes, and what is refused."""

from __future__ import annotations

import pytest

from tests.workers.sizing.test_model_shape import DEEPSEEK_V3, LLAMA_8B, LLAMA_70B
from workers.sizing import gpus, layouts, model_shape
from workers.sizing.errors import CannotSize, DoesNotFit
from workers.sizing.gpus import GIB

SMALL, LARGE = model_shape.read(LLAMA_8B), model_shape.read(LLAMA_70B)


@pytest.mark.parametrize(
    ("shape", "gpu", "count"), [(SMALL, "H100", 1), (SMALL, "L4", 2), (LARGE, "H100", 4), (LARGE, "H200", 2)]
)
def test_the_fewest_gpus_are_taken(shape: model_shape.ModelShape, gpu: str, count: int) -> None:
    found = layouts.smallest(shape, gpus.memory_bytes(gpu))
    assert found.gpus == count
    used = found.weight_bytes + found.working_bytes + found.kv_bytes
    assert used == int(found.gpu_bytes * layouts.UTILISATION)
    assert found.kv_tokens * found.kv_bytes_per_token <= found.kv_bytes


def test_a_context_that_was_asked_for_must_fit_once() -> None:
    one = layouts.smallest(SMALL, gpus.memory_bytes("L4"), context_tokens=4096)
    assert (one.gpus, one.context_tokens) == (1, 4096)
    assert layouts.smallest(SMALL, gpus.memory_bytes("L4"), context_tokens=131072).gpus == 2


def test_the_proposed_context_is_what_fits() -> None:
    found = layouts.smallest(LARGE, gpus.memory_bytes("80"), weight_bytes=int(37.4 * GIB))
    assert found.gpus == 1
    assert found.context_tokens % layouts.CONTEXT_STEP_TOKENS == 0
    assert found.context_tokens <= found.kv_tokens < found.context_tokens + layouts.CONTEXT_STEP_TOKENS


def test_a_smaller_cache_dtype_doubles_its_tokens() -> None:
    whole, half = (layouts.smallest(SMALL, gpus.memory_bytes("H100"), kv_value_bytes=size).kv_tokens for size in (2, 1))
    assert half == pytest.approx(2 * whole, abs=1)


def test_heads_beyond_those_of_the_cache_repeat_it() -> None:
    mla = model_shape.read(DEEPSEEK_V3)
    found = layouts.smallest(mla, gpus.memory_bytes("H200"))
    assert found.gpus == 8
    assert found.kv_bytes_per_token == mla.kv_bytes_per_token(2)


def test_what_needs_two_nodes_is_refused_with_figures() -> None:
    with pytest.raises(DoesNotFit, match=r"634\.\d GiB .* 8 × 80 GiB, .* about 10 such GPUs, so more than one node"):
        layouts.smallest(model_shape.read(DEEPSEEK_V3), gpus.memory_bytes("H100"))
    with pytest.raises(DoesNotFit, match="4 × 80 GiB"):
        layouts.smallest(LARGE, gpus.memory_bytes("80"), gpus_per_node=4, context_tokens=700_000)


def test_replicas_hold_the_requests_that_are_expected() -> None:
    found = layouts.smallest(SMALL, gpus.memory_bytes("H100"))
    assert layouts.replicas_for(found, 1, 100) == 1
    assert layouts.replicas_for(found, 10, found.kv_tokens) == 10


@pytest.mark.parametrize(
    ("name", "gib"), [("h100", 80), ("NVIDIA H200", 141), ("48", 48), ("48GB", 48), ("22.5", 22.5)]
)
def test_a_gpu_has_a_name_or_a_size(name: str, gib: float) -> None:
    assert gpus.memory_bytes(name) == int(gib * GIB)


@pytest.mark.parametrize("name", ["H1000x", "", "0.2", "1e9", "nan", "inf"])
def test_what_is_no_gpu_is_refused(name: str) -> None:
    with pytest.raises(CannotSize):
        gpus.memory_bytes(name)
