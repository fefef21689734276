"""The engines' own parsers, which read a command line before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalogue.engine_options import EngineOptions
from tests.engines.replica import spec_for
from workers.engines import argument_check, environment
from workers.engines.argument_check import Checked, check, refusal_in
from workers.engines.driver import EMBEDDING_ARGS, TINY_MODEL_ARGS
from workers.engines.options import own_arguments

ENGINES = [
    "simulated",
    pytest.param("vllm", marks=[pytest.mark.real_engine, pytest.mark.long]),
]


def refusal(engine: str, folder: Path, *arguments: str) -> str:
    """Return what the engine's parser says against these arguments."""
    if engine == "vllm" and environment.default() is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    checked = check(engine, spec_for(folder, engine_args=arguments))
    assert checked.unchecked == ""
    return checked.refusal


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_deployment_needs_is_accepted(engine: str, tmp_path: Path) -> None:
    assert refusal(engine, tmp_path, *TINY_MODEL_ARGS, *EMBEDDING_ARGS) == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_typed_options_are_accepted(engine: str, tmp_path: Path) -> None:
    if engine == "vllm" and environment.default() is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    options = EngineOptions(kv_dtype="fp8", quantization="fp8", host_memory_gib=64, lora_adapters=4, lora_rank=32)
    spec = spec_for(tmp_path, engine_args=(), options=options, context_length_tokens=0)
    assert check(engine, spec) == Checked()


@pytest.mark.real_engine
@pytest.mark.long
def test_vllm_names_the_types_that_a_kv_cache_may_have(tmp_path: Path) -> None:
    if environment.default() is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    checked = check("vllm", spec_for(tmp_path, engine_args=(), options=EngineOptions(kv_dtype="fp9")))
    assert checked.refusal.startswith("argument --kv-cache-dtype: invalid choice: 'fp9' (choose from ")


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unknown_argument_is_refused_in_the_parsers_words(engine: str, tmp_path: Path) -> None:
    assert refusal(engine, tmp_path, "--max-num-sqes=4").startswith("unrecognized arguments: --max-num-sqes=4")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_value_of_the_wrong_kind_is_refused_in_the_parsers_words(engine: str, tmp_path: Path) -> None:
    assert "argument --max-num-seqs: " in refusal(engine, tmp_path, "--max-num-seqs", "many")


@pytest.mark.real_engine
@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--dytpe", "float16"), "unrecognized arguments: --dytpe; did you mean --dtype?"),
        (("float16",), "unrecognized arguments: float16"),
        (("--enable-auto-tool-choice",), "--enable-auto-tool-choice requires --tool-call-parser"),
    ],
    ids=["misspelt", "without its name", "incomplete"],
)
def test_vllm_refuses_what_its_server_would_refuse(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    assert refusal("vllm", tmp_path, *arguments) == sentence


def test_an_engine_that_is_not_installed_here_checks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_ENGINE_VENV", str(tmp_path))
    assert check("vllm", spec_for(tmp_path)) == Checked(unchecked="the engine environment is not installed")


def test_a_parser_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argument_check, "PARSER_TIMEOUT_SECONDS", 0.001)
    assert check("simulated", spec_for(tmp_path)).unchecked == "its parser gave no answer within 0 s"


def test_the_refusal_is_the_last_thing_in_a_log() -> None:
    log = "INFO: error: no\nusage: server.py [-h]\n  [--port PORT]\nserver.py: error: argument --port:\n  bad value\n"
    assert refusal_in(log) == "argument --port: bad value"
    assert refusal_in("RuntimeError: error in a kernel\n") == ""


def test_dashes_alone_are_no_argument_of_hearths_own_and_all_of_tls_are() -> None:
    assert own_arguments.find(["--tokenizer", "-", "--"]) is None
    for given in ("--ssl-ciphers=x", "--ssl_cert_reqs", "--ssl", "--ssl-key"):
        found = own_arguments.find([given])
        assert found is not None and "HEARTH_ENGINE_TLS" in found.instead
