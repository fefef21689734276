"""Whatever a config.json says, the sizer answers or refuses."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.workers.sizing.test_model_shape import DEEPSEEK_V3, GEMMA_3_27B, GPT_OSS_120B, LLAMA_8B, MIXTRAL
from workers.sizing import layouts, model_shape
from workers.sizing.errors import CannotSize, DoesNotFit
from workers.sizing.gpus import GIB

MODELS = (LLAMA_8B, MIXTRAL, DEEPSEEK_V3, GPT_OSS_120B, GEMMA_3_27B)
FIELDS = sorted(
    {name for model in MODELS for name in model}
    | {"llm_config", "compression_config", "model_type", "head_dim", "use_sliding_window", "multi_query"}
    | {"decoder_sparse_step", "moe_layer_freq", "shared_expert_intermediate_size", "n_embd", "n_inner", "ffn_dim"}
)
NUMBERS = st.one_of(st.integers(-8, 4096), st.integers(), st.just(10**400), st.floats())
WORDS = st.sampled_from(
    ["fp8", "sliding_attention", "linear_attention", "bits", "weights", "num_bits", "config_groups"]
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, WORDS, st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=8,
)
CHANGES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5)


@given(
    model=st.sampled_from(({}, *MODELS)),
    changes=CHANGES,
    gib=st.integers(1, 10_000),
    context_tokens=st.none() | st.integers(1, 1 << 40),
)
def test_any_configuration_is_sized_or_refused(
    model: dict[str, Any], changes: dict[str, Any], gib: int, context_tokens: int | None
) -> None:
    try:
        shape = model_shape.read(model | changes)
        found = layouts.smallest(shape, gib * GIB, context_tokens=context_tokens)
    except (CannotSize, DoesNotFit) as refused:
        assert str(refused).isprintable()
        return
    assert found.weight_bytes > 0
    assert found.sequences >= 1
    assert layouts.replicas_for(shape, found, found.sequences + 1, found.context_tokens) == 2
