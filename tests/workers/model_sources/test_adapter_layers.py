"""What an adapter changes is compared with its base before it is deployed, in a folder and on the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalogue.adapters import Adapter
from catalogue.engine_options import EngineOptions
from tests import hub, lora
from workers.engines.driver import TINY_MODEL
from workers.errors import ModelRefused
from workers.model_sources import adapter_files, adapter_layers, projections
from workers.model_sources import files as model_files

OPTIONS = EngineOptions(lora_adapters=2, lora_rank=16)


def check(source: str, base_source: str = str(TINY_MODEL)) -> Adapter:
    return adapter_files.check(source, model_files.find(source), "chat", OPTIONS, base_source)


@pytest.mark.parametrize("place", ["folder", "hub"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers": 400}, "changes layer 399, and chat has layers 0 to 3."),
        (
            {"outputs": {"qq_proj": 128}},
            "changes 'self_attn.qq_proj', and the layers of chat have down_proj, gate_proj, k_proj, o_proj, q_proj, "
            "up_proj, v_proj.",
        ),
        ({"width": 4096}, "changes 'self_attn.q_proj' of layer 0 with 4096 inputs, and that of chat has 128."),
        (
            {"outputs": {"v_proj": 1024}},
            "changes 'self_attn.v_proj' of layer 0 with 1024 outputs, and that of chat has 64.",
        ),
    ],
)
def test_an_adapter_of_another_model_is_refused_with_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, changes: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    folder = lora.write(tmp_path / "tone", **changes)
    with hub.running(folder) as known:
        monkeypatch.setenv("HF_ENDPOINT", known.url)
        with pytest.raises(ModelRefused) as refused:
            check(str(folder) if place == "folder" else hub.MODEL)
    assert said in str(refused.value)
    assert "It was trained on another model." in str(refused.value)


def test_an_adapter_of_the_base_is_not_refused_on_the_hub_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    folder = lora.write(tmp_path / "tone")
    with hub.running(folder) as known:
        monkeypatch.setenv("HF_ENDPOINT", known.url)
        assert check(hub.MODEL) == check(str(folder))
        (folder / "adapter_model.safetensors").write_bytes(b"no header of a tensor")
        with pytest.raises(ModelRefused, match="is no safetensors file"):
            check(hub.MODEL)


def test_layers_are_compared_with_a_base_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with hub.running(TINY_MODEL) as known:
        monkeypatch.setenv("HF_ENDPOINT", known.url)
        check(str(lora.write(tmp_path / "tone")), hub.MODEL)
        with pytest.raises(ModelRefused, match="changes layer 4, and chat has layers 0 to 3"):
            check(str(lora.write(tmp_path / "deep", layers=5)), hub.MODEL)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"outputs": {"qq_proj": 128}},
            "changes 'self_attn.qq_proj', and the layers of chat have down_proj, gate_proj,",
        ),
        ({"width": 4096}, "changes 'self_attn.q_proj' of layer 0 with 4096 inputs, and that of chat has 128."),
        (
            {"outputs": {"v_proj": 1024}},
            "changes 'self_attn.v_proj' of layer 0 with 1024 outputs, and that of chat has 64.",
        ),
    ],
)
def test_sizes_are_compared_with_the_configuration_of_a_base_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with hub.running(TINY_MODEL) as known:
        monkeypatch.setenv("HF_ENDPOINT", known.url)
        with pytest.raises(ModelRefused) as refused:
            check(str(lora.write(tmp_path / "tone", **changes)), hub.MODEL)
    assert said in str(refused.value)


def test_the_sizes_that_a_configuration_says_are_those_of_the_weights() -> None:
    configuration = json.loads((TINY_MODEL / "config.json").read_bytes())
    by_header = {key: shapes for key, shapes in adapter_layers._modules(str(TINY_MODEL)).items() if shapes}
    assert adapter_layers._modules_of(configuration).modules == by_header
    without = adapter_layers._modules_of(configuration | {"head_dim": None}).modules
    assert without[0, "self_attn.q_proj"] == {(128, 128)}
    for change in ({"model_type": "novel"}, {"hidden_size": "wide"}, {"num_attention_heads": 0, "head_dim": None}):
        assert adapter_layers._modules_of(configuration | change).modules == {}
    assert adapter_layers._modules_of(configuration | {"model_type": "qwen3", "head_dim": None}).modules == {}


SIZES = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
#: As transformers 5.19 makes them of these sizes.
SEPARATE = {"q_proj": (144, 96), "k_proj": (48, 96), "v_proj": (48, 96), "o_proj": (96, 144)}


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        *((kind, SEPARATE | {"up_proj": (160, 96), "down_proj": (96, 160)}) for kind in ("arcee", "granite", "olmo2")),
        ("granite", {"gate_proj": (160, 96)}),
        ("phi3", {"qkv_proj": (240, 96), "o_proj": (96, 144), "gate_up_proj": (320, 96), "down_proj": (96, 160)}),
        ("glm4", SEPARATE | {"gate_up_proj": (320, 96), "down_proj": (96, 160)}),
        ("starcoder2", SEPARATE | {"c_fc": (160, 96), "c_proj": (96, 160)}),
        ("internlm2", {"wqkv": (240, 96), "wo": (96, 144), "w1": (160, 96), "w3": (160, 96), "w2": (96, 160)}),
        *((kind, SEPARATE) for kind in ("mixtral", "qwen2_moe", "qwen3_moe", "granitemoe", "olmoe", "phimoe")),
    ],
)
def test_each_family_has_projections_of_its_own(kind: str, shapes: dict[str, tuple[int, int]]) -> None:
    found = projections.of_configuration(SIZES | {"model_type": kind, "head_dim": 24})
    assert found is not None
    by_name = {name.rpartition(".")[2]: shape for name, shape in found.shapes.items()}
    assert shapes.items() <= by_name.items()


def test_heads_share_out_the_hidden_size_only_where_their_architecture_says_so() -> None:
    found = projections.of_configuration(SIZES | {"model_type": "mixtral"})
    assert found is not None and found.shapes["self_attn.k_proj"] == (32, 96)
    assert projections.of_configuration(SIZES | {"model_type": "gemma2"}) is None
    assert projections.of_configuration(SIZES | {"model_type": "phi3", "num_key_value_heads": None}) is None


@pytest.mark.parametrize(
    ("kind", "outputs", "said"),
    [
        ("phi3", {"q_proj": 128, "v_proj": 64}, "changes 'self_attn.q_proj', and the layers of chat have down_proj,"),
        ("mixtral", {"v_proj": 128}, "changes 'self_attn.v_proj' of layer 0 with 128 outputs, and that of chat has 64"),
        ("mixtral", {"gate": 8}, ""),
    ],
)
def test_an_adapter_is_compared_with_the_projections_of_its_base(
    tmp_path: Path, kind: str, outputs: dict[str, int], said: str
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    (base / "config.json").write_text(json.dumps(SIZES | sizes | {"model_type": kind}))
    source = str(lora.write(tmp_path / "tone", outputs=outputs))
    if not said:
        check(source, str(base))
        return
    with pytest.raises(ModelRefused) as refused:
        check(source, str(base))
    assert said in str(refused.value)


def test_a_base_whose_weights_are_packed_is_compared_by_names_and_by_its_configuration(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    header = (
        b'{"model.layers.0.self_attn.q_proj.qweight": {"dtype": "I32", "shape": [16, 128], "data_offsets": [0, 0]}}'
    )
    (base / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    check(str(lora.write(tmp_path / "tone", outputs={"q_proj": 128})), str(base))
    with pytest.raises(ModelRefused, match=r"changes 'self_attn\.v_proj', and the layers of chat have q_proj\."):
        check(str(lora.write(tmp_path / "other")), str(base))
    quantised = SIZES | {"hidden_size": 128, "num_hidden_layers": 4, "head_dim": 32, "model_type": "qwen3"}
    (base / "config.json").write_text(json.dumps(quantised | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(ModelRefused, match=r"of layer 0 with 128 outputs, and that of chat has 192\."):
        check(str(lora.write(tmp_path / "narrow", outputs={"q_proj": 128})), str(base))
