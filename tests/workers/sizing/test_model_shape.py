"""Parameters and KV bytes of published models, as their makers state them."""

from __future__ import annotations

from typing import Any

import pytest

from workers.sizing import model_shape
from workers.sizing.errors import CannotSize

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64
}  # fmt: skip
MIXTRAL = LLAMA_8B | {"vocab_size": 32000, "num_local_experts": 8}
QWEN3_30B = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "mlp_only_layers": [],
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
}
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "quantization_config": {"quant_method": "fp8"},
}
GPT_OSS_120B = {
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_local_experts": 128,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "quantization_config": {"quant_method": "mxfp4"},
}

GEMMA_3_27B = {
    "text_config": {
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "vocab_size": 262208,
        "tie_word_embeddings": True,
        "max_position_embeddings": 131072,
        "sliding_window": 1024,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10 + ["sliding_attention"] * 2,
    }
}
PHI_4 = {
    "hidden_size": 5120,
    "intermediate_size": 17920,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 10,
    "vocab_size": 100352,
    "max_position_embeddings": 16384,
}


@pytest.mark.parametrize(
    ("config", "billions", "kv_values"),
    [
        (LLAMA_8B, 8.03, 32 * 2 * 8 * 128),
        (LLAMA_70B, 70.55, 80 * 2 * 8 * 128),
        (MIXTRAL, 46.7, 32 * 2 * 8 * 128),
        (QWEN3_30B, 30.5, 48 * 2 * 4 * 128),
        (DEEPSEEK_V3, 671, 61 * (512 + 64)),
        (GPT_OSS_120B, 116.8, 36 * 2 * 8 * 64),
        (GEMMA_3_27B, 27.0, 62 * 2 * 16 * 128),
        (PHI_4, 14.66, 40 * 2 * 10 * 128),
    ],
)
def test_parameters_and_cache_of_published_models(config: dict[str, Any], billions: float, kv_values: int) -> None:
    shape = model_shape.read(config)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert shape.kv_bytes_per_token(2) == 2 * kv_values


def test_tied_embeddings_are_stored_once() -> None:
    tied, untied = (model_shape.read(LLAMA_8B | {"tie_word_embeddings": each}) for each in (True, False))
    assert untied.parameters - tied.parameters == 128256 * 4096


@pytest.mark.parametrize(
    ("changes", "quantization", "gib"),
    [
        ({}, None, 131.4),
        ({"torch_dtype": "float32"}, None, 262.8),
        ({}, "fp8", 68.4),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, None, 37.4),
        ({"quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": 8}}}}}, None, 69.2),
    ],
)
def test_weights_are_as_large_as_their_format(changes: dict[str, Any], quantization: str | None, gib: float) -> None:
    assert model_shape.read(LLAMA_70B | changes, quantization).weight_bytes / 2**30 == pytest.approx(gib, rel=0.01)


def test_a_sliding_window_bounds_what_a_sequence_keeps() -> None:
    shape = model_shape.read(GPT_OSS_120B)
    per_layer = 2 * 8 * 64 * 2
    assert shape.kv_bytes_per_sequence(1000, 2) == 18 * per_layer * 1000 + 18 * per_layer * 128
    assert shape.kv_bytes_per_sequence(100, 2) == 36 * per_layer * 100


def test_what_is_not_counted_is_said() -> None:
    mixed = {"text_config": LLAMA_8B | {"layer_types": ["linear_attention", "full_attention"] * 16}}
    shape = model_shape.read(mixed)
    assert len(shape.attention) == 16
    assert [note.split()[0] for note in shape.notes] == ["weights", "the"]


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_configuration_without_a_size_is_refused_by_its_name(missing: str) -> None:
    config = {name: value for name, value in LLAMA_8B.items() if name != missing}
    with pytest.raises(CannotSize, match=f"LlamaForCausalLM has no {missing}"):
        model_shape.read(config)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("vocab_size", 10**400),
        ("max_position_embeddings", 10**12),
        ("max_position_embeddings", -5),
        ("num_key_value_heads", "x"),
        ("num_key_value_heads", -8),
        ("head_dim", True),
        ("intermediate_size", [1]),
        ("layer_types", [1]),
        ("layer_types", ["full_attention"]),
        ("text_config", "x"),
        ("quantization_config", "fp8"),
        ("architectures", 5),
        ("architectures", ["\x1b[2J"]),
        ("torch_dtype", ["bfloat16"]),
        ("mlp_only_layers", 1),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(CannotSize, match=f"config.json has {field}") as refused:
        model_shape.read(MIXTRAL | {field: value})
    assert len(str(refused.value)) < 200
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("name", "group"), [("bits", {"bits": "4"}), ("weights", {"config_groups": {"group_0": {"weights": [4]}}})]
)
def test_bits_that_cannot_be_are_refused(name: str, group: dict[str, Any]) -> None:
    with pytest.raises(CannotSize, match=name):
        model_shape.read(LLAMA_8B | {"quantization_config": group})


@pytest.mark.parametrize("changes", [{"layer_types": ["linear_attention"] * 32}, {"num_attention_heads": 5000}])
def test_a_model_without_a_cache_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CannotSize, match="no layer with a KV cache"):
        model_shape.read(LLAMA_8B | changes)


def test_weights_are_quantised_only_by_what_engines_can() -> None:
    with pytest.raises(CannotSize, match="'bitsandbytes'"):
        model_shape.read(LLAMA_8B, "bitsandbytes")
    with pytest.raises(CannotSize, match="quantised already"):
        model_shape.read(DEEPSEEK_V3, "fp8")
