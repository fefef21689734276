"""`hearth size`: from a folder, a config.json or the Hub; errors say what to change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hearth.cli.main import hearth
from tests import hub
from tests.workers.sizing.test_model_shape import DEEPSEEK_V3, LLAMA_70B
from workers.engines.driver import TINY_MODEL


def size(*arguments: str | Path) -> Result:
    return CliRunner().invoke(hearth, ["size", *map(str, arguments)])


@pytest.fixture(name="config")
def _config(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA_70B))
    return file


def test_the_table_has_gpus_memory_replicas_and_options(config: Path) -> None:
    found = size(config, "--gpu", "H100", "--kv-dtype", "fp8", "--requests", "100", "--tokens", "20000")
    assert found.exit_code == 0, found.output
    rows = {line[:24].strip(): line[24:].strip() for line in found.output.splitlines()}
    assert rows["GPUs per replica"] == "4 × 80.0 GiB, tensor parallel"
    assert rows["Weights per GPU"] == "32.85 GiB (from its config.json)"
    assert rows["Context"].startswith("131,072 tokens, 7 such requests")
    assert "Replicas for 100 × 20,000 tokens at once: 3." in found.output
    options = "--replicas 3 --slots-per-replica 4 --context-tokens 131072 --kv-dtype fp8"
    assert f"hearth deploy NAME --source {config.parent} {options}\n" in found.output


def test_json_has_the_same_figures(config: Path) -> None:
    found = json.loads(size(config, "--gpu", "H200", "--context-tokens", "32768", "--json").output)
    assert found["layout"]["gpus"] == 2
    assert found["layout"]["context_tokens"] == 32768
    options = ["--replicas", "1", "--slots-per-replica", "2", "--context-tokens", "32768"]
    assert found["deploy_options"] == options


def test_a_folder_counts_by_the_size_of_its_files() -> None:
    found = size(TINY_MODEL, "--gpu", "4")
    assert found.exit_code == 0, found.output
    assert "(from its files)" in found.output
    assert "Context                 8,192 tokens" in found.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpu", "abacus"), "'abacus' is no known GPU. Give its memory in GiB"),
        (("--gpu", "H100", "--context-tokens", "131073"), "was made for 131,072 tokens, not 131,073"),
        (
            ("--gpu", "H100", "--context-tokens", "4096", "--tokens", "4097"),
            "does not fit into a context of 4,096 tokens",
        ),
        (("--gpu", "L4"), "more than one node"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(config: Path, arguments: tuple[str, ...], said: str) -> None:
    found = size(config, *arguments)
    assert found.exit_code == 1
    assert said in found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "content", ["", "[1]", "{}", '{"hidden_size": "4096"}', "\x00", pytest.param("[" * 100_000, id="nested")]
)
def test_a_file_that_is_no_configuration_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    found = size(file, "--gpu", "H100")
    assert found.exit_code == 1
    assert "config.json" in found.stderr
    assert found.exception is None or isinstance(found.exception, SystemExit)


def test_a_model_on_the_hub_needs_no_download_of_its_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    (files / "model.safetensors").write_bytes(b"weights")
    with hub.running(files) as known:
        known.listed_sizes = {"model.safetensors": 40 << 30}
        monkeypatch.setenv("HF_ENDPOINT", known.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        found = size(hub.MODEL, "--gpu", "H100")
    assert found.exit_code == 0, found.output
    assert "1 × 80.0 GiB" in found.output
    assert "40.00 GiB (from its files)" in found.output
    assert known.sent == [("main", "config.json")]
