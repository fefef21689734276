"""How many GPUs a model takes, and what is refused."""

from __future__ import annotations

import pytest

from tests.workers.sizing.test_model_shape import DEEPSEEK_V3, GEMMA_3_27B, LLAMA_8B, LLAMA_70B, PHI_4
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


def test_a_refusal_counts_the_cache_in_its_dtype() -> None:
    said = []
    for value_bytes in (2.0, 1.0):
        with pytest.raises(DoesNotFit) as refused:
            layouts.smallest(LARGE, gpus.memory_bytes("L4"), context_tokens=131_072, kv_value_bytes=value_bytes)
        said.append(str(refused.value))
    assert "a cache of 40.0 GiB" in said[0]
    assert "a cache of 20.0 GiB" in said[1]


def test_heads_of_the_cache_are_divided_evenly() -> None:
    shape = model_shape.read(PHI_4)
    with pytest.raises(DoesNotFit, match=r"2 × 15 GiB.* 40 heads, 10 of the cache, among more GPUs"):
        layouts.smallest(shape, gpus.memory_bytes("T4"), context_tokens=16_384)


def test_replicas_hold_the_requests_that_are_expected() -> None:
    found = layouts.smallest(SMALL, gpus.memory_bytes("H100"))
    assert layouts.replicas_for(SMALL, found, 1, 100) == 1
    assert layouts.replicas_for(SMALL, found, found.sequences, found.context_tokens) == 1
    assert layouts.replicas_for(SMALL, found, found.sequences + 1, found.context_tokens) == 2


def test_windows_count_when_requests_are_held() -> None:
    shape = model_shape.read(GEMMA_3_27B)
    found = layouts.smallest(shape, gpus.memory_bytes("80"))
    assert (found.gpus, found.context_tokens, found.sequences) == (1, 131_072, 1)
    assert layouts.replicas_for(shape, found, 1, 131_072) == 1


def test_a_request_is_not_split_among_replicas() -> None:
    found = layouts.smallest(SMALL, gpus.memory_bytes("L4"), context_tokens=8192)
    most = found.kv_tokens
    found = layouts.smallest(SMALL, gpus.memory_bytes("L4"), context_tokens=int(0.6 * most))
    assert layouts.replicas_for(SMALL, found, 5, int(0.6 * most)) == 5


def test_a_request_longer_than_the_context_is_refused() -> None:
    found = layouts.smallest(SMALL, gpus.memory_bytes("H100"), context_tokens=4096)
    with pytest.raises(CannotSize, match=r"4,097 tokens does not fit into a context of 4,096"):
        layouts.replicas_for(SMALL, found, 1, 4097)


@pytest.mark.parametrize(
    ("name", "gib"), [("h100", 80), ("NVIDIA H200", 141), ("48", 48), ("48GB", 48), ("22.5", 22.5)]
)
def test_a_gpu_has_a_name_or_a_size(name: str, gib: float) -> None:
    assert gpus.memory_bytes(name) == int(gib * GIB)


@pytest.mark.parametrize("name", ["H1000x", "", "0.2", "1e9", "nan", "inf"])
def test_what_is_no_gpu_is_refused(name: str) -> None:
    with pytest.raises(CannotSize):
        gpus.memory_bytes(name)
