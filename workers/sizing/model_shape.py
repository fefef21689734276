"""Read from a model's config.json how large its weights are and what a token costs in the KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workers.sizing.config_fields import MOST_LAYERS, Config, mapping, number, required, text, texts, values
from workers.sizing.errors import CannotSize

#: Bytes of a value by the names that configurations use.
DTYPE_BYTES = {
    "float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "half": 2.0, "float": 4.0, "auto": 2.0,
    "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "float8_e4m3fn": 1.0, "int8": 1.0,
}  # fmt: skip
#: Bits of a weight with its scales, by the quantisation method of its files; other methods say their bits.
METHOD_BITS = {"fp8": 8.1, "fbgemm_fp8": 8.1, "mxfp4": 4.25, "modelopt_fp4": 4.5, "bitsandbytes": 4.5, "int8": 8.1}
#: The same for methods by which vLLM quantises weights when it loads them, dense layers and experts alike.
LOADING_BITS = {
    "fp8": 8.1,
    "fp8_per_block": 8.1,
    "fp8_per_channel": 8.1,
    "fp8_per_tensor": 8.1,
    "mxfp4": 4.25,
    "mxfp8": 8.25,
}
#: What a group's scale and zero point add to each weight, bits.
SCALE_BITS = 0.2
MOST_BITS = 64
#: Parts of the names of layers without a KV cache.
RECURRENT = ("linear", "mamba", "conv")


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
    decoder = mapping(config, "text_config") or mapping(config, "llm_config") or config
    architecture = (texts(config, "architectures") or [text(config, "model_type") or "unknown"])[0]
    layers = required(decoder, architecture, "num_hidden_layers", "n_layer", "num_layers", most=MOST_LAYERS)
    hidden = required(decoder, architecture, "hidden_size", "n_embd", "d_model")
    heads = required(decoder, architecture, "num_attention_heads", "n_head")
    vocabulary = required(decoder, architecture, "vocab_size")
    attention = _attention(decoder, layers, hidden, heads)
    if not any(layer.values for layer in attention):
        raise CannotSize(f"config.json of {architecture} has no layer with a KV cache, so it cannot be sized.")
    feed_forward = _feed_forward_parameters(decoder, hidden, layers)
    tied = bool(decoder.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
    other_bits = 8 * DTYPE_BYTES.get(_dtype(config, decoder), 2.0)
    return ModelShape(
        architecture=architecture,
        linear_parameters=layers * _attention_parameters(decoder, hidden, heads) + feed_forward,
        other_parameters=vocabulary * hidden * (1 if tied else 2) + (2 * layers + 1) * hidden,
        linear_bits=_linear_bits(config, decoder, quantization, other_bits),
        other_bits=other_bits,
        attention=attention,
        hidden=hidden,
        intermediate=_intermediate(decoder, hidden),
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=1 if number(decoder, "kv_lora_rank") else _kv_heads(decoder, heads),
        layers=layers,
        context_tokens=number(decoder, "max_position_embeddings", "n_positions", "seq_length"),
        notes=_notes(config, decoder, len(attention) < layers),
    )


def _notes(config: Config, decoder: Config, recurrent: bool) -> tuple[str, ...]:
    """Return what the estimate leaves out."""
    towers = () if decoder is config else ("weights of the vision or audio tower are not counted",)
    return (*towers, "the state of layers without attention is not counted") if recurrent else towers


def _dtype(config: Config, decoder: Config) -> str:
    found = text(decoder, "dtype", "torch_dtype") or text(config, "dtype", "torch_dtype")
    return found.removeprefix("torch.") or "bfloat16"


def _head_dim(decoder: Config, hidden: int, heads: int) -> int:
    return number(decoder, "head_dim") or hidden // heads


def _kv_heads(decoder: Config, heads: int) -> int:
    return number(decoder, "num_key_value_heads") or (1 if decoder.get("multi_query") else heads)


def _attention(decoder: Config, layers: int, hidden: int, heads: int) -> tuple[AttentionLayer, ...]:
    """Return the layers with attention; those with a recurrent state have none."""
    if rank := number(decoder, "kv_lora_rank"):  # MLA keeps one compressed vector and the rotated key
        return (AttentionLayer(values=rank + (number(decoder, "qk_rope_head_dim") or 0)),) * layers
    per_token = 2 * _kv_heads(decoder, heads) * _head_dim(decoder, hidden, heads)
    window = number(decoder, "sliding_window") if decoder.get("use_sliding_window", True) else None
    kinds = texts(decoder, "layer_types") or ["sliding_attention" if window else "full_attention"] * layers
    if len(kinds) < layers:
        raise CannotSize(f"config.json has layer_types for {len(kinds)} of {layers} layers.")
    return tuple(
        AttentionLayer(values=per_token, window=window if kind == "sliding_attention" else None)
        for kind in kinds[:layers]
        if not any(part in kind for part in RECURRENT)
    )


def _attention_parameters(decoder: Config, hidden: int, heads: int) -> int:
    """Return the parameters of one layer's projections."""
    if rank := number(decoder, "kv_lora_rank"):
        nope, rope, value = (
            number(decoder, name) or 0 for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        query_rank = number(decoder, "q_lora_rank")
        width = heads * (nope + rope)
        query = query_rank * (hidden + width) if query_rank else hidden * width
        return query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    head_dim = _head_dim(decoder, hidden, heads)
    return hidden * head_dim * (2 * heads + 2 * _kv_heads(decoder, heads))


def _intermediate(decoder: Config, hidden: int) -> int:
    found = number(decoder, "intermediate_size", "n_inner", "ffn_dim", "moe_intermediate_size")
    return found or 4 * hidden


def _feed_forward_parameters(decoder: Config, hidden: int, layers: int) -> int:
    """Return the parameters of all feed-forward layers: gated ones have three matrices, experts one set each."""
    matrices = 2 if number(decoder, "n_embd", "ffn_dim") else 3
    dense = matrices * hidden * _intermediate(decoder, hidden)
    experts = number(decoder, "num_local_experts", "n_routed_experts", "num_experts")
    if not experts:
        return layers * dense
    width = number(decoder, "moe_intermediate_size") or _intermediate(decoder, hidden)
    shared = (number(decoder, "n_shared_experts") or 0) * width or number(decoder, "shared_expert_intermediate_size")
    sparse = matrices * hidden * (experts * width + (shared or 0)) + hidden * experts
    dense_layers = len(values(decoder, "mlp_only_layers")) + (number(decoder, "first_k_dense_replace") or 0)
    step = number(decoder, "decoder_sparse_step", "moe_layer_freq") or 1
    sparse_layers = max(0, layers - dense_layers) // step
    return sparse_layers * sparse + (layers - sparse_layers) * dense


def _linear_bits(config: Config, decoder: Config, quantization: str | None, unquantised: float) -> float:
    stored = (
        mapping(config, "quantization_config")
        or mapping(decoder, "quantization_config")
        or mapping(config, "compression_config")
    )
    if stored and quantization:
        raise CannotSize("The model's files are quantised already. Leave --quantization out.")
    if stored:
        return _stored_bits(stored, unquantised)
    if not quantization:
        return unquantised
    if quantization not in LOADING_BITS:
        raise CannotSize(
            f"vLLM quantises no weights by {quantization!r} when it loads them, only by {', '.join(LOADING_BITS)}."
        )
    return LOADING_BITS[quantization]


def _stored_bits(stored: Config, unquantised: float) -> float:
    """Return the bits of a weight as the files have it."""
    groups = mapping(stored, "config_groups")
    weights = [mapping(mapping(groups, name), "weights") for name in groups]
    bits = [number(each, "num_bits", most=MOST_BITS) for each in weights]
    if found := number(stored, "bits", most=MOST_BITS) or next(filter(None, bits), None):
        return found + SCALE_BITS
    if stored.get("load_in_8bit"):
        return METHOD_BITS["int8"]
    return METHOD_BITS.get(text(stored, "quant_method"), unquantised)
