"""How many GPUs a model needs, from its config.json: what `hearth size` prints, and pages show before a deployment."""

from __future__ import annotations

from dataclasses import dataclass

from workers.model_sources import files as model_files
from workers.sizing import gpus, layouts, model_shape
from workers.sizing.errors import CannotSize
from workers.sizing.gpus import GIB
from workers.sizing.layouts import Layout
from workers.sizing.model_shape import DTYPE_BYTES, ModelShape

#: Types of a KV cache that the sizer knows.
KV_DTYPES = ("auto", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A model's shape and its smallest layout. ``stored_bytes``: of its files, 0 if they are not what is loaded."""

    shape: ModelShape
    layout: Layout
    stored_bytes: int

    def rows(self) -> list[tuple[str, str]]:
        """Return the figures with their names."""
        shape, layout = self.shape, self.layout
        weights_from = "files" if self.stored_bytes else "config.json"
        return [
            ("Model", f"{shape.architecture}, {shape.parameters / 1e6:,.0f} million parameters"),
            ("GPUs per replica", f"{layout.gpus} × {layout.gpu_bytes / GIB:.1f} GiB, tensor parallel"),
            ("Weights per GPU", f"{layout.weight_bytes / GIB:.2f} GiB (from its {weights_from})"),
            ("Working memory per GPU", f"{layout.working_bytes / GIB:.2f} GiB"),
            ("KV cache per GPU", f"{layout.kv_bytes / GIB:.2f} GiB"),
            ("KV cache per token", f"{layout.kv_bytes_per_token / 1024:.1f} KiB per GPU"),
            ("Tokens in the cache", f"{layout.kv_tokens:,}"),
            ("Context", f"{layout.context_tokens:,} tokens, {layout.sequences:,} such requests at once"),
        ]


def size(
    source: str, *, gpu: str, gpus_per_node: int, context_tokens: int | None, kv_dtype: str, quantization: str | None
) -> Sized:
    """Compute a model's smallest layout. ``source``: a folder, a Hugging Face id or a config.json.

    Raises CannotSize, DoesNotFit, ModelRefused.
    """
    gpu_bytes = gpus.memory_bytes(gpu)
    config, files = model_files.configuration(source)
    shape = model_shape.read(config, quantization)
    if context_tokens and shape.context_tokens and context_tokens > shape.context_tokens:
        raise CannotSize(f"The model was made for {shape.context_tokens:,} tokens, not {context_tokens:,}.")
    stored = files.weight_bytes if files is not None and not quantization else 0
    layout = layouts.smallest(
        shape,
        gpu_bytes,
        gpus_per_node=gpus_per_node,
        context_tokens=context_tokens,
        kv_value_bytes=DTYPE_BYTES[kv_dtype],
        weight_bytes=stored or None,
    )
    return Sized(shape=shape, layout=layout, stored_bytes=stored)
