"""Read from a model's config.json how large its weights are and what a token costs in the KV cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.sizing.errors import CannotSize

Config = Mapping[str, Any]

#: Bytes of a value by the names that configurations use.
DTYPE_BYTES = {
    "float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "half": 2.0, "float": 4.0, "auto": 2.0,
    "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "float8_e4m3fn": 1.0, "int8": 1.0,
}  # fmt: skip
#: Bits of a weight with its scales, by quantisation method; other methods say their bits.
METHOD_BITS = {"fp8": 8.1, "fbgemm_fp8": 8.1, "mxfp4": 4.25, "modelopt_fp4": 4.5, "bitsandbytes": 4.5, "int8": 8.1}
#: What a group's scale and zero point add to each weight, bits.
SCALE_BITS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """A layer's part of the KV cache."""

    #: Values that a token adds, keys and values together.
    values: int
    #: It keeps at most this many tokens of a sequence; None: all of them.
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What memory depends on. Counts are of the whole model."""

    architecture: str
    #: Parameters in matrices that a quantisation shrinks, and all others (embeddings, norms).
    linear_parameters: int
    other_parameters: int
    #: Bits of one parameter of each kind.
    linear_bits: float
    other_bits: float
    attention: tuple[AttentionLayer, ...]
    hidden: int
    #: Of the widest feed-forward layer.
    intermediate: int
    vocabulary: int
    heads: int
    #: Heads over which the KV cache can be divided; 1 where it cannot (MLA).
    kv_heads: int
    layers: int
    #: Longest context that the model was made for, tokens; None if it does not say.
    context_tokens: int | None
    #: What the estimate leaves out.
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """Return the number of parameters."""
        return self.linear_parameters + self.other_parameters

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights."""
        return math.ceil((self.linear_parameters * self.linear_bits + self.other_parameters * self.other_bits) / 8)

    def kv_bytes_per_token(self, value_bytes: float) -> float:
        """Return the bytes that a token takes in the KV cache while it is in every layer's window."""
        return sum(layer.values for layer in self.attention) * value_bytes

    def kv_bytes_per_sequence(self, tokens: int, value_bytes: float) -> float:
        """Return the bytes that a sequence of ``tokens`` takes."""
        kept = (layer.values * min(tokens, layer.window or tokens) for layer in self.attention)
        return sum(kept) * value_bytes


def read(config: Config, quantization: str | None = None) -> ModelShape:
    """Return the shape of a decoder in Hugging Face's config.json.

    ``quantization``: the engine's option, for weights that are quantised when they are loaded. Raises CannotSize.
    """
    text = config.get("text_config") or config.get("llm_config") or config
    notes = []
    if text is not config:
        notes.append("weights of the vision or audio tower are not counted")
    architecture = str((config.get("architectures") or [config.get("model_type", "unknown")])[0])
    layers = _count(text, architecture, "num_hidden_layers", "n_layer", "num_layers")
    hidden = _count(text, architecture, "hidden_size", "n_embd", "d_model")
    heads = _count(text, architecture, "num_attention_heads", "n_head")
    vocabulary = _count(text, architecture, "vocab_size")
    attention = _attention(text, layers, hidden, heads)
    if len(attention) < layers:
        notes.append("the state of layers without attention is not counted")
    linear = layers * _attention_parameters(text, hidden, heads) + _feed_forward_parameters(text, architecture, layers)
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
    other = vocabulary * hidden * (1 if tied else 2) + (2 * layers + 1) * hidden
    other_bits = 8 * DTYPE_BYTES.get(_dtype(config, text), 2.0)
    return ModelShape(
        architecture=architecture,
        linear_parameters=linear,
        other_parameters=other,
        linear_bits=_linear_bits(config, text, quantization, other_bits),
        other_bits=other_bits,
        attention=attention,
        hidden=hidden,
        intermediate=_intermediate(text, hidden),
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=1 if text.get("kv_lora_rank") else _kv_heads(text, heads),
        layers=layers,
        context_tokens=_context(text),
        notes=tuple(notes),
    )


def _count(config: Config, architecture: str, *names: str) -> int:
    """Return the first of these numbers that the configuration has. Raises CannotSize."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise CannotSize(f"config.json of {architecture} has no {' or '.join(names)}, so its size cannot be computed.")


def _dtype(config: Config, text: Config) -> str:
    found = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    return str(found or "bfloat16").removeprefix("torch.")


def _head_dim(text: Config, hidden: int, heads: int) -> int:
    return int(text.get("head_dim") or hidden // heads)


def _kv_heads(text: Config, heads: int) -> int:
    return int(text.get("num_key_value_heads") or (1 if text.get("multi_query") else heads))


def _context(text: Config) -> int | None:
    found = text.get("max_position_embeddings") or text.get("n_positions") or text.get("seq_length")
    return int(found) if found else None


def _attention(text: Config, layers: int, hidden: int, heads: int) -> tuple[AttentionLayer, ...]:
    """Return the layers with attention; those with a recurrent state have none."""
    if rank := text.get("kv_lora_rank"):  # MLA keeps one compressed vector and the rotated key
        return (AttentionLayer(values=int(rank) + int(text.get("qk_rope_head_dim") or 0)),) * layers
    values = 2 * _kv_heads(text, heads) * _head_dim(text, hidden, heads)
    window = text.get("sliding_window") if text.get("use_sliding_window", True) else None
    kinds = text.get("layer_types") or ["sliding_attention" if window else "full_attention"] * layers
    return tuple(
        AttentionLayer(values=values, window=int(window) if window and kind == "sliding_attention" else None)
        for kind in kinds
        if "linear" not in kind and "mamba" not in kind and "conv" not in kind
    )


def _attention_parameters(text: Config, hidden: int, heads: int) -> int:
    """Return the parameters of one layer's projections."""
    if rank := text.get("kv_lora_rank"):
        nope, rope, value = (
            int(text.get(name) or 0) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        query_rank = text.get("q_lora_rank")
        query = (
            hidden * query_rank + query_rank * heads * (nope + rope) if query_rank else hidden * heads * (nope + rope)
        )
        return int(query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden)
    head_dim = _head_dim(text, hidden, heads)
    return hidden * head_dim * (2 * heads + 2 * _kv_heads(text, heads))


def _intermediate(text: Config, hidden: int) -> int:
    found = (
        text.get("intermediate_size") or text.get("n_inner") or text.get("ffn_dim") or text.get("moe_intermediate_size")
    )
    return int(found or 4 * hidden)


def _feed_forward_parameters(text: Config, architecture: str, layers: int) -> int:
    """Return the parameters of all feed-forward layers: gated ones have three matrices, experts one set each."""
    hidden = _count(text, architecture, "hidden_size", "n_embd", "d_model")
    matrices = 2 if text.get("n_embd") or text.get("ffn_dim") else 3
    dense = matrices * hidden * _intermediate(text, hidden)
    experts = next(
        (int(text[name]) for name in ("num_local_experts", "n_routed_experts", "num_experts") if text.get(name)), 0
    )
    if not experts:
        return layers * dense
    width = int(text.get("moe_intermediate_size") or _intermediate(text, hidden))
    shared = int(text.get("n_shared_experts") or 0) * width or int(text.get("shared_expert_intermediate_size") or 0)
    sparse = matrices * hidden * (experts * width + shared) + hidden * experts
    dense_layers = len(text.get("mlp_only_layers") or ()) + int(text.get("first_k_dense_replace") or 0)
    step = int(text.get("decoder_sparse_step") or text.get("moe_layer_freq") or 1)
    sparse_layers = max(0, layers - dense_layers) // step
    return sparse_layers * sparse + (layers - sparse_layers) * dense


def _linear_bits(config: Config, text: Config, quantization: str | None, unquantised: float) -> float:
    stored = config.get("quantization_config") or text.get("quantization_config") or config.get("compression_config")
    if stored:
        return _stored_bits(stored, unquantised)
    if not quantization:
        return unquantised
    if quantization not in METHOD_BITS:
        raise CannotSize(
            f"Weights cannot be quantised by {quantization!r} when they are loaded: {', '.join(METHOD_BITS)}."
        )
    return METHOD_BITS[quantization]


def _stored_bits(stored: Config, unquantised: float) -> float:
    """Return the bits of a weight as the files have it."""
    method = str(stored.get("quant_method", ""))
    groups = stored.get("config_groups") or {}
    bits = [((group.get("weights") or {}).get("num_bits")) for group in groups.values()]
    if found := stored.get("bits") or next(filter(None, bits), None):
        return float(found) + SCALE_BITS
    if stored.get("load_in_8bit"):
        return METHOD_BITS["int8"]
    return METHOD_BITS.get(method, unquantised)
