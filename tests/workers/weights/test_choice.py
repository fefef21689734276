"""A node fetches the weights of one format, and what is no weights."""

from __future__ import annotations

import pytest

from workers.weights.choice import chosen

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
        (["pytorch_model.bin", "model.pt"], "", ["pytorch_model.bin"]),
        (["model.gguf"], "", ["model.gguf"]),
        (
            ["2_Dense/model.safetensors", "2_Dense/pytorch_model.bin", "model.safetensors", "modules.json"],
            "",
            ["2_Dense/model.safetensors", "model.safetensors", "modules.json"],
        ),
    ],
)
def test_an_engine_s_weights_are_chosen(names: list[str], load_format: str, weights: list[str]) -> None:
    assert chosen([*OTHER, *names], load_format) == sorted([*OTHER, *weights])


def test_configurations_in_folders_are_fetched_too() -> None:
    assert chosen(["1_Pooling/config.json", "model.safetensors"], "") == ["1_Pooling/config.json", "model.safetensors"]
