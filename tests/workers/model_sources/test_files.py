"""Which files of a model count as its weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import hub
from workers.model_sources import files as model_files


def files(folder: Path, sizes: dict[str, int]) -> Path:
    for name, size in sizes.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(size))
    return folder


@pytest.mark.parametrize(
    ("sizes", "weight_bytes"),
    [
        ({"model-00001.safetensors": 60, "model-00002.safetensors": 40, "consolidated.safetensors": 99}, 99),
        ({"consolidated-00001.safetensors": 50, "consolidated-00002.safetensors": 50, "model.safetensors": 98}, 100),
        ({"consolidated.safetensors": 100}, 100),
        ({"model.safetensors": 100, "pytorch_model.bin": 100}, 100),
        ({"model.safetensors": 100, "consolidated.00.pth": 99}, 100),
        ({"pytorch_model.bin": 100, "original/model.safetensors": 7}, 100),
        ({"model.safetensors": 100, "onnx/model.safetensors": 100}, 100),
        ({"config.json": 5}, 0),
    ],
)
@pytest.mark.parametrize("on_hub", [False, True], ids=["folder", "hub"])
def test_weights_count_once(
    sizes: dict[str, int], weight_bytes: int, on_hub: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(tmp_path, sizes)
    if not on_hub:
        assert model_files.find(str(folder)).weight_bytes == weight_bytes
        return
    with hub.running(folder) as known:
        monkeypatch.setenv("HF_ENDPOINT", known.url)
        found = model_files.find(hub.MODEL)
    assert found.weight_bytes == weight_bytes
    assert not any("/" in name for name in found.sizes)
