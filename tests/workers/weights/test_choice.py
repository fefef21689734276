"""A node fetches the weights of one format, and what is no weights."""

from __future__ import annotations

import pytest

from workers.weights.choice import chosen, has_pickles

OTHER = ["README.md", "config.json", "tokenizer.json"]


@pytest.mark.parametrize(
    ("names", "load_format", "weights"),
    [
        (["model.safetensors", "pytorch_model.bin", "tf_model.h5", "model.onnx"], "", ["model.safetensors"]),
        (["model-1.safetensors", "consolidated.safetensors"], "", ["consolidated.safetensors"]),
        (
            ["model-1.safetensors", "consolidated.safetensors"],
            "safetensors",
            ["consolidated.safetensors", "model-1.safetensors"],
        ),
        (["model-1.safetensors", "consolidated.safetensors"], "mistral", ["consolidated.safetensors"]),
        (["model.safetensors", "original/consolidated.00.pth", "original/a.safetensors"], "", ["model.safetensors"]),
        (["model.safetensors", "pytorch_model.bin"], "npcache", ["pytorch_model.bin"]),
        (["model.safetensors", "model.pt"], "pt", ["model.pt"]),
        (["pytorch_model.bin", "model.pt"], "", ["pytorch_model.bin", "model.pt"]),
        (["model.gguf"], "", ["model.gguf"]),
        (
            ["2_Dense/model.safetensors", "2_Dense/pytorch_model.bin", "model.safetensors", "modules.json"],
            "",
            ["2_Dense/model.safetensors", "model.safetensors", "modules.json"],
        ),
        # A projection of sentence-transformers, without which the engine serves other vectors.
        (
            ["2_Dense/pytorch_model.bin", "model.safetensors", "modules.json", "openvino/openvino_model.bin"],
            "",
            ["2_Dense/pytorch_model.bin", "model.safetensors", "modules.json"],
        ),
        (["2_Dense/pytorch_model.bin", "model.safetensors"], "", ["model.safetensors"]),
        # Further layers, without which the engine does not start.
        *[
            ([weights, "sparse_linear.pt", "colbert_linear.pt"], "", [weights, "sparse_linear.pt", "colbert_linear.pt"])
            for weights in ("pytorch_model.bin", "model.safetensors")
        ],
        # Adapters, and parts of a model that is in folders only.
        (
            ["adapters/retrieval/adapter_model.safetensors", "model.safetensors"],
            "",
            ["adapters/retrieval/adapter_model.safetensors", "model.safetensors"],
        ),
        (
            ["transformer/a-1.safetensors", "vision_encoder/a.safetensors", "metal/model.safetensors"],
            "",
            ["transformer/a-1.safetensors", "vision_encoder/a.safetensors"],
        ),
        (["pytorch_model.bin", "training_args.bin", "optimizer.pt"], "", ["pytorch_model.bin"]),
    ],
)
def test_an_engine_s_weights_are_chosen(names: list[str], load_format: str, weights: list[str]) -> None:
    assert chosen([*OTHER, *names], load_format) == sorted([*OTHER, *weights])


def test_configurations_in_folders_are_fetched_too() -> None:
    assert chosen(["1_Pooling/config.json", "model.safetensors"], "") == ["1_Pooling/config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("names", "load_format", "found"),
    [
        (["model.safetensors", "pytorch_model.bin"], "", False),
        (["model.safetensors", "pytorch_model.bin"], "npcache", True),
        (["pytorch_model.bin"], "", True),
        (["model.gguf"], "", False),
        (["model.safetensors", "modules.json", "2_Dense/pytorch_model.bin"], "", True),
        (["model.safetensors", "modules.json", "2_Dense/pytorch_model.bin", "2_Dense/model.safetensors"], "", False),
    ],
)
def test_pickles_are_found_where_the_engine_loads_them(names: list[str], load_format: str, found: bool) -> None:
    assert has_pickles([*OTHER, *names], load_format) == found
