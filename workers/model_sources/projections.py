"""The projections of a base's layers and their sizes, by its config.json, for architectures whose layers are alike.

Names and sizes are those of the models' code in transformers 5.19, by which PEFT names what an adapter changes, and
were compared with it; vLLM 0.32 loads adapters of these types (``model_executor/models/``). A quantised base has them
too: its packed weights stand for matrices of these sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Outputs and inputs of each projection, by the names that ``_sizes`` gives.
_Table = Mapping[str, tuple[str, str]]
Shapes = Mapping[str, tuple[int, int]]

_ATTENTION: _Table = {
    "self_attn.q_proj": ("query", "hidden"),
    "self_attn.k_proj": ("key", "hidden"),
    "self_attn.v_proj": ("key", "hidden"),
    "self_attn.o_proj": ("hidden", "query"),
}
_DOWN: _Table = {"mlp.down_proj": ("hidden", "inner")}
_UP_DOWN: _Table = {"mlp.up_proj": ("inner", "hidden"), **_DOWN}
_GATED: _Table = {**_ATTENTION, "mlp.gate_proj": ("inner", "hidden"), **_UP_DOWN}
_UNGATED: _Table = {**_ATTENTION, **_UP_DOWN}
_FUSED_GATE: _Table = {"mlp.gate_up_proj": ("gate and up", "hidden"), **_DOWN}
_GLM: _Table = {**_ATTENTION, **_FUSED_GATE}
_PHI3: _Table = {
    "self_attn.qkv_proj": ("query, key and value", "hidden"),
    "self_attn.o_proj": ("hidden", "query"),
    **_FUSED_GATE,
}
_STARCODER2: _Table = {**_ATTENTION, "mlp.c_fc": ("inner", "hidden"), "mlp.c_proj": ("hidden", "inner")}
_INTERNLM2: _Table = {
    "attention.wqkv": ("query, key and value", "hidden"),
    "attention.wo": ("hidden", "query"),
    "feed_forward.w1": ("inner", "hidden"),
    "feed_forward.w3": ("inner", "hidden"),
    "feed_forward.w2": ("hidden", "inner"),
}
#: By ``model_type``: every projection of a layer.
_WHOLE: Mapping[str, _Table] = {
    **dict.fromkeys(("llama", "mistral", "ministral3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"), _GATED),
    **dict.fromkeys(("granite", "olmo2", "olmo3", "exaone4", "seed_oss", "cohere", "cohere2"), _GATED),
    **dict.fromkeys(("smollm3", "ernie4_5"), _GATED),
    **dict.fromkeys(("arcee", "nemotron"), _UNGATED),
    **dict.fromkeys(("glm", "glm4"), _GLM),
    "phi3": _PHI3,
    "starcoder2": _STARCODER2,
    "internlm2": _INTERNLM2,
}
#: By ``model_type``: a mixture of experts, of which checkpoints and PEFT name all but the attention in many ways.
_ATTENTION_ALONE = frozenset({"mixtral", "qwen2_moe", "qwen3_moe", "granitemoe", "olmoe", "phimoe"})
#: Those whose heads share out the hidden size where the configuration has no ``head_dim``; others have a number of
#: their own.
_HEADS_FILL_HIDDEN = frozenset(
    {"llama", "mistral", "qwen2", "granite", "olmo2", "olmo3", "exaone4", "cohere", "cohere2", "smollm3", "arcee"}
    | {"nemotron", "phi3", "starcoder2", "internlm2", "mixtral", "qwen2_moe", "granitemoe", "olmoe", "phimoe"}
)
#: Those that have as many heads for keys as for queries where the configuration has no ``num_key_value_heads``.
_A_KEY_PER_QUERY = frozenset({"llama", "qwen2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Projections:
    """The projections of one layer. ``whole``: a layer has no others."""

    shapes: Shapes
    whole: bool


def of_configuration(configuration: Mapping[str, Any]) -> Projections | None:
    """Return the projections of each layer of a base; None if its type is not known or a size is missing."""
    kind = configuration.get("model_type")
    if not isinstance(kind, str):
        return None
    whole = kind in _WHOLE
    table = _WHOLE.get(kind) or (_ATTENTION if kind in _ATTENTION_ALONE else {})
    try:
        sizes = _sizes(kind, configuration)
        shapes = {name: (sizes[outputs], sizes[inputs]) for name, (outputs, inputs) in table.items()}
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    return Projections(shapes=shapes, whole=whole) if shapes else None


def _sizes(kind: str, configuration: Mapping[str, Any]) -> Mapping[str, int]:
    hidden, heads = int(configuration["hidden_size"]), int(configuration["num_attention_heads"])
    inner = int(configuration["intermediate_size"])
    key_heads = configuration.get("num_key_value_heads") or (heads if kind in _A_KEY_PER_QUERY else None)
    size = configuration.get("head_dim") or (hidden // heads if kind in _HEADS_FILL_HIDDEN else None)
    query, key = heads * int(size), int(key_heads) * int(size)  # type: ignore[arg-type]  # None: a TypeError
    return {
        "hidden": hidden,
        "inner": inner,
        "gate and up": 2 * inner,
        "query": query,
        "key": key,
        "query, key and value": query + 2 * key,
    }
