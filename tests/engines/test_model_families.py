"""Which parsers a model gets by its name, and that vLLM has them."""

import json
import subprocess

import pytest

from workers.engines import environment
from workers.engines.model_families import FAMILIES, default_args, family_of

STRICT = ("--tool-strict-level", "parameter")
LIST_PARSERS = """
import json
from vllm.reasoning import ReasoningParserManager as Reasoning
from vllm.tool_parsers import ToolParserManager as Tools
print(json.dumps([[*Tools.tool_parsers, *Tools.lazy_parsers], [*Reasoning.reasoning_parsers, *Reasoning.lazy_parsers]]))
"""


@pytest.mark.parametrize(
    ("source", "parsers"),
    [
        ("Qwen/Qwen3-8B", ("hermes", "qwen3")),
        ("/models/Qwen3-30B-A3B-Instruct-2507/", ("hermes", "")),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", ("qwen3_xml", "")),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", ("hermes", "")),
        ("NousResearch/Hermes-3-Llama-3.1-8B", ("hermes", "")),
        ("meta-llama/Llama-3.3-70B-Instruct", ("llama3_json", "")),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", ("llama3_json", "")),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", ("", "deepseek_r1")),
        ("openai/gpt-oss-20b", ("openai", "openai_gptoss")),
        ("/cache/models--mistralai--Mistral-Small-3.2-24B/snapshots/0a1b", ("mistral", "")),
    ],
)
def test_a_family_is_known_by_the_models_own_name(source: str, parsers: tuple[str, str]) -> None:
    family = family_of(source)
    assert family is not None
    assert (family.tools, family.reasoning) == parsers


@pytest.mark.parametrize("source", ["org/Model", "Qwen/Qwen3-Embedding-8B", "/qwen3-8b/mine", "mistralai/Mixtral-8x7B"])
def test_another_name_belongs_to_no_family(source: str) -> None:
    assert default_args(source, ()) == ()


@pytest.mark.parametrize(
    ("source", "given", "added"),
    [
        (
            "Qwen/Qwen3-8B",
            (),
            ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", *STRICT, "--reasoning-parser", "qwen3"),
        ),
        ("Qwen/Qwen3-8B", ("--no-enable-auto-tool-choice", "--reasoning-parser="), ()),
        (
            "Qwen/Qwen3-8B-Instruct",
            ("--tool-strict-level=auto",),
            ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        ),
        ("org/Model", ("--tool-call-parser", "xlam"), ("--enable-auto-tool-choice", *STRICT)),
        ("Qwen/Qwen3-8B-Instruct", ("--tool_call_parser=xlam",), ("--enable-auto-tool-choice", *STRICT)),
    ],
    ids=["none", "off", "lenient", "unknown_family", "underscores"],
)
def test_what_the_operator_gives_replaces_the_default(
    source: str, given: tuple[str, ...], added: tuple[str, ...]
) -> None:
    assert default_args(source, given) == added


@pytest.mark.long
@pytest.mark.real_engine
def test_vllm_has_every_parser_of_the_table() -> None:
    installed = environment.default()
    if installed is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    listed = subprocess.run([installed.python, "-c", LIST_PARSERS], capture_output=True, timeout=300, check=True)
    tools, reasoning = json.loads(listed.stdout.splitlines()[-1])
    assert {family.tools for family in FAMILIES} <= {"", *tools}
    assert {family.reasoning for family in FAMILIES} <= {"", *reasoning}
