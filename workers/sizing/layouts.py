"""Find the smallest number of GPUs of one node that holds a model, and say what fits beside it.

An estimate: vLLM measures the rest when it starts, and says how many tokens its cache holds.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, replace

from workers.sizing.errors import CannotSize, DoesNotFit
from workers.sizing.gpus import GIB
from workers.sizing.model_shape import ModelShape

#: The part of a GPU that vLLM fills, its own default.
UTILISATION = 0.92
#: Numbers of GPUs that a replica may take, smallest first.
GANGS = (1, 2, 4, 8, 16)
#: What CUDA, its graphs and the libraries take of each GPU; and what its links to others of its gang add.
RUNTIME_BYTES, LINKS_BYTES = int(1.3 * GIB), int(0.5 * GIB)
#: Tokens that a step computes and sequences that a batch has, vLLM's defaults; GPUs with much memory compute more.
STEP_TOKENS, LARGE_STEP_TOKENS, LARGE_GPU_BYTES = 2048, 8192, 70 * GIB
BATCH_SEQUENCES, LARGE_BATCH_SEQUENCES = 256, 1024
#: How many sequences of how many tokens must fit at least, where no context is asked for.
LEAST_SEQUENCES, LEAST_CONTEXT_TOKENS = 8, 8192
#: A proposed context that is smaller than the model's is a multiple of this.
CONTEXT_STEP_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A replica over the GPUs of one node. Bytes are those of one GPU."""

    gpus: int
    gpu_bytes: int
    weight_bytes: int
    #: Activations, CUDA graphs and the runtime.
    working_bytes: int
    kv_bytes: int
    #: Bytes of the cache that one token takes on one GPU.
    kv_bytes_per_token: float
    #: Tokens that the cache holds, each in every layer's window.
    kv_tokens: int
    context_tokens: int
    #: Sequences of that length that fit at once.
    sequences: int


def smallest(
    shape: ModelShape,
    gpu_bytes: int,
    *,
    gpus_per_node: int = 8,
    context_tokens: int | None = None,
    kv_value_bytes: float = 2.0,
    weight_bytes: int | None = None,
) -> Layout:
    """Return the layout with the fewest GPUs.

    ``context_tokens``: one sequence of that length must fit; None proposes a length. ``weight_bytes``: the size of the
    files, if known. Raises DoesNotFit.
    """
    weights = weight_bytes or shape.weight_bytes
    gangs = [gpus for gpus in GANGS if gpus <= gpus_per_node and _divides(shape, gpus)]
    tried = [_layout(shape, gpu_bytes, gpus, weights, kv_value_bytes) for gpus in gangs]
    model_context = shape.context_tokens or LEAST_CONTEXT_TOKENS
    least = context_tokens or min(model_context, LEAST_CONTEXT_TOKENS)
    sequences = 1 if context_tokens else LEAST_SEQUENCES
    cache = sequences * shape.kv_bytes_per_sequence(least, kv_value_bytes)
    for found in tried:
        if found.kv_bytes >= _per_gpu(shape, cache, found.gpus):
            return _with_context(shape, found, context_tokens or model_context, kv_value_bytes)
    said = (
        f"Weights of {weights / GIB:.1f} GiB and a cache of {cache / GIB:.1f} GiB for {sequences} × {least:,} tokens "
        "do not fit into"
    )
    raise DoesNotFit(f"{said} {_refusal(shape, tried[-1], gpus_per_node, weights + cache)}")


def replicas_for(shape: ModelShape, layout: Layout, requests: int, tokens: int, kv_value_bytes: float = 2.0) -> int:
    """Return how many replicas hold ``requests`` at once, each of ``tokens`` tokens of prompt and answer.

    A request is held by one replica as a whole. Raises CannotSize for more tokens than the context has.
    """
    if tokens > layout.context_tokens:
        raise CannotSize(
            f"A request of {tokens:,} tokens does not fit into a context of {layout.context_tokens:,} tokens. "
            "Give fewer --tokens or more --context-tokens."
        )
    one = _per_gpu(shape, shape.kv_bytes_per_sequence(tokens, kv_value_bytes), layout.gpus)
    return math.ceil(requests / int(layout.kv_bytes // one))


def _divides(shape: ModelShape, gpus: int) -> bool:
    """Return whether vLLM can divide a model's heads among ``gpus``. It divides those of the cache, or repeats them."""
    return shape.heads % gpus == 0 and (shape.kv_heads % gpus == 0 or gpus % shape.kv_heads == 0)


def _layout(shape: ModelShape, gpu_bytes: int, gpus: int, weights: int, kv_value_bytes: float) -> Layout:
    weight_bytes = math.ceil(weights / gpus)
    working = _working_bytes(shape, gpu_bytes, gpus)
    kv_bytes = int(gpu_bytes * UTILISATION) - weight_bytes - working
    per_token = _per_gpu(shape, shape.kv_bytes_per_token(kv_value_bytes), gpus)
    return Layout(
        gpus=gpus,
        gpu_bytes=gpu_bytes,
        weight_bytes=weight_bytes,
        working_bytes=working,
        kv_bytes=kv_bytes,
        kv_bytes_per_token=per_token,
        kv_tokens=max(0, int(kv_bytes // per_token)),
        context_tokens=0,
        sequences=0,
    )


def _with_context(shape: ModelShape, found: Layout, context: int, kv_value_bytes: float) -> Layout:
    """Return a layout with the context that was asked for, or with as much of the model's as fits."""

    def one(tokens: int) -> float:
        return _per_gpu(shape, shape.kv_bytes_per_sequence(tokens, kv_value_bytes), found.gpus)

    if one(context) > found.kv_bytes:
        steps = range(CONTEXT_STEP_TOKENS, context, CONTEXT_STEP_TOKENS)
        context = steps[bisect.bisect_right(steps, float(found.kv_bytes), key=one) - 1]
    return replace(found, context_tokens=context, sequences=int(found.kv_bytes // one(context)))


def _per_gpu(shape: ModelShape, bytes_: float, gpus: int) -> float:
    """Return what one GPU of a gang holds of the cache: heads are divided, and beyond their number repeated."""
    return bytes_ / min(gpus, shape.kv_heads)


def _working_bytes(shape: ModelShape, gpu_bytes: int, gpus: int) -> int:
    large = gpu_bytes >= LARGE_GPU_BYTES
    step, batch = (LARGE_STEP_TOKENS, LARGE_BATCH_SEQUENCES) if large else (STEP_TOKENS, BATCH_SEQUENCES)
    activations = step * (4 * shape.hidden + 3 * shape.intermediate / gpus) * 2
    logits = batch * shape.vocabulary * 4 * 2
    return int(RUNTIME_BYTES + (LINKS_BYTES if gpus > 1 else 0) + activations + logits)


def _refusal(shape: ModelShape, most: Layout, gpus_per_node: int, needed_bytes: float) -> str:
    """Return the most that one node gives to a replica, and why it is not more."""
    usable = max(0, int(most.gpu_bytes * UTILISATION) - most.working_bytes)
    said = (
        f"{most.gpus} × {most.gpu_bytes / GIB:.0f} GiB, of which {most.gpus * usable / GIB:.1f} GiB are left for them"
    )
    needed = math.ceil(needed_bytes / max(1, usable))
    if usable and needed > gpus_per_node:
        return f"{said}: it needs about {needed:,} such GPUs, so more than one node."
    if 2 * most.gpus <= gpus_per_node:
        return (
            f"{said}: vLLM cannot divide {shape.heads} heads, {shape.kv_heads} of the cache, among more GPUs of a node."
        )
    return f"{said}."
