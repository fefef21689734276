"""Default vLLM parsers of known model families: how each writes tool calls and its reasoning.

A family is recognized by the model's own name, the last part of its Hugging Face id or folder. The table holds only
families whose own chat template describes tools, so the parser is all that vLLM needs. The pairs are those of vLLM's
documentation (``features/tool_calling.md`` and ``features/reasoning_outputs.md``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

#: Holds every tool call to the tool's name and schema, as if each tool were ``strict``. Without it the arguments of a
#: tool that is not strict may be any text, and clients fail to parse them.
STRICT_ARGS = ("--tool-strict-level", "parameter")

_TOOL_PARSER, _REASONING_PARSER = "--tool-call-parser", "--reasoning-parser"
_AUTO, _NO_AUTO = "--enable-auto-tool-choice", "--no-enable-auto-tool-choice"


@dataclass(frozen=True, slots=True)
class Family:
    """The parsers of one family; an empty name is none."""

    pattern: re.Pattern[str]
    tools: str
    reasoning: str = ""


def _family(pattern: str, tools: str, reasoning: str = "") -> Family:
    """Return a family whose names contain ``pattern`` at the start of a word."""
    return Family(re.compile(rf"(?<![a-z0-9])(?:{pattern})"), tools, reasoning)


#: What is known of a model of no known family.
NO_FAMILY = _family("", "")

#: The first one that matches counts: fine-tunes and distilled models come before the models that they are made from.
FAMILIES = (
    _family(r"hermes-(?:2-pro|3)", "hermes"),
    _family(r"deepseek-r1", "", "deepseek_r1"),
    _family(r"gpt-oss", "openai", "openai_gptoss"),
    _family(r"qwen3-coder", "qwen3_xml"),
    _family(r"qwen3\.\d", "qwen3_xml", "qwen3"),
    # The instruct models of Qwen 3 do not reason, and the parser takes an answer without an end of reasoning for it.
    _family(r"qwen3-.*instruct", "hermes"),
    _family(r"qwen3(?!-(?:embedding|reranker))", "hermes", "qwen3"),
    _family(r"qwq-32b", "hermes", "deepseek_r1"),
    _family(r"qwen2\.5", "hermes"),
    _family(r"llama-3\.[123]", "llama3_json"),
    _family(r"(?:ministral|devstral|mistral-(?:small|large|nemo|7b-instruct-v0\.3))", "mistral"),
    _family(r"glm-4\.[56]", "glm45", "glm45"),
    _family(r"glm-4\.7", "glm47", "glm47"),
    _family(r"kimi-k2-thinking", "kimi_k2", "kimi_k2"),
    _family(r"kimi-k2", "kimi_k2"),
    _family(r"minimax-m2", "minimax_m2", "minimax_m2"),
    _family(r"seed-oss", "seed_oss", "seed_oss"),
    _family(r"hunyuan-a13b", "hunyuan_a13b", "hunyuan_a13b"),
    _family(r"longcat-flash-chat", "longcat"),
    _family(r"granite-4", "granite4"),
    _family(r"granite-3\.[1-3]", "granite"),
    _family(r"olmo-3-.*think", "olmo3", "olmo3"),
    _family(r"olmo-3", "olmo3"),
    _family(r"jamba-1\.5", "jamba"),
)


def default_args(source: str, given: Sequence[str]) -> tuple[str, ...]:
    """Return the parser arguments that the model at ``source`` needs besides those ``given``, which win.

    A parser in ``given`` stands for the family's, also of a model without a known family; an empty reasoning parser or
    ``--no-enable-auto-tool-choice`` turns the family's off. The result is part of the revision and of its digest.
    """
    family = family_of(source) or NO_FAMILY
    named = {argument.partition("=")[0].replace("_", "-") for argument in given if argument.startswith("--")}
    calls_tools = (family.tools or _TOOL_PARSER in named) and _NO_AUTO not in named
    defaults: list[tuple[str, ...]] = []
    if calls_tools:
        defaults += [(_AUTO,), (_TOOL_PARSER, family.tools), STRICT_ARGS]
    if family.reasoning:
        defaults.append((_REASONING_PARSER, family.reasoning))
    return tuple(part for default in defaults if default[0] not in named for part in default)


def family_of(source: str) -> Family | None:
    """Return the family of a Hugging Face id or folder; None if no family is known."""
    # A folder in Hugging Face's cache is models--ORG--NAME/snapshots/COMMIT.
    cached = re.search(r"models--[^/]*--([^/]+)/snapshots/", source)
    own = cached[1] if cached else source.rstrip("/").rpartition("/")[2]
    name = own.lower().replace("_", "-")
    return next((family for family in FAMILIES if family.pattern.search(name)), None)
