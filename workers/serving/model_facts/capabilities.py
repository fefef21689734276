"""What a model can do: only what its engine's arguments and its files say. Nothing follows from a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from catalogue.registry import ServedModel
from workers.engines import arguments
from workers.engines.driver import serves_embeddings

#: The engine finds calls of tools in what the model writes, and what of it is reasoning.
_CHOOSES_TOOLS, _NO_TOOLS = "--enable-auto-tool-choice", "--no-enable-auto-tool-choice"
_REASONING, _TEMPLATE = "--reasoning-parser", "--chat-template"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a model does. None: not known."""

    task: Literal["text", "embeddings"]
    chat: bool | None
    completions: bool | None
    embeddings: bool | None
    #: It chooses among tools, and calls them.
    tools: bool | None
    #: Its output can be held to a JSON schema.
    structured_outputs: bool | None
    vision: bool | None
    #: Its reasoning stands apart from its answer.
    reasoning: bool | None
    #: Its replicas load LoRA adapters.
    lora: bool | None


def of(model: ServedModel) -> Capabilities:
    """Return what is known of a model's abilities; those of a LoRA adapter are of its base."""
    given, files = model.engine_args, model.file_facts
    vision = None if files is None else files.vision
    takes_adapters = model.lora_adapters > 0 and not model.base
    if serves_embeddings(given):
        return Capabilities(
            task="embeddings",
            chat=False,
            completions=False,
            embeddings=True,
            tools=False,
            structured_outputs=False,
            vision=vision,
            reasoning=False,
            lora=takes_adapters,
        )
    named = arguments.option_names(given)
    tools = _CHOOSES_TOOLS in named and _NO_TOOLS not in named
    # The parsers that Hearth knows are of families whose chat template describes tools.
    chat = True if tools or _TEMPLATE in named else None if files is None else files.chat
    return Capabilities(
        task="text",
        chat=chat,
        completions=True,
        embeddings=False,
        tools=tools,
        structured_outputs=True,
        vision=vision,
        reasoning=True if _has_reasoning_parser(given) else None,
        lora=takes_adapters,
    )


def _has_reasoning_parser(given: Sequence[str]) -> bool:
    """Return whether a parser is named: an empty one turns that of the model's family off."""
    words = [word for each in given for word in each.split("=", 1)]
    return any(name.replace("_", "-") == _REASONING and value for name, value in pairwise(words))
