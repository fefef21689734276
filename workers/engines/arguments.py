"""What the arguments of an engine say about the files that it loads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

LOAD_FORMAT = "--load-format"
#: Formats of weights that are Python pickles, which the engine loads only where an argument says so.
PICKLE_FORMATS = frozenset({"pt", "npcache"})
#: Arguments that may name a further repository of the hub, beside the model's own. The model's own code may do so too.
FURTHER_SOURCES = (
    *("--tokenizer", "--speculative-config", "--hf-config-path", "--lora-modules"),
    "--trust-remote-code",
)
#: Short for --speculative-config.
_SHORT = frozenset({"-sc"})


def is_folder(source: str) -> bool:
    """Return whether a model's source is an absolute folder and not a Hugging Face id."""
    return source.startswith("/")


def commit_of(engine_args: Sequence[str]) -> str:
    """Return the commit that a revision's engines run; empty for a folder."""
    return next((value for name, value in pairwise(engine_args) if name == "--revision"), "")


def is_fetched(engine: str, source: str, engine_args: Sequence[str]) -> bool:
    """Return whether a node fetches the model's files before an engine starts: those of a commit on the hub."""
    return engine == "vllm" and bool(source) and not is_folder(source) and bool(commit_of(engine_args))


def is_offline(engine: str, source: str, engine_args: Sequence[str]) -> bool:
    """Return whether the engine has all its files on the node, so that it is kept from the hub."""
    if engine != "vllm":
        return False
    return is_folder(source) or (is_fetched(engine, source, engine_args) and not _names_further_sources(engine_args))


def load_format(engine_args: Sequence[str]) -> str:
    """Return the value of the last LOAD_FORMAT, lower case as vLLM reads it; empty without one."""
    words = [
        word for argument in engine_args for word in (argument.split("=", 1) if argument[:1] == "-" else [argument])
    ]
    named = [
        value.lower()
        for name, value in pairwise(words)
        if len(name) > len("--l") and LOAD_FORMAT.startswith(name.replace("_", "-"))
    ]
    return named[-1] if named else ""


def option_names(engine_args: Sequence[str]) -> set[str]:
    """Return the names of the options, as typed: vLLM takes every unambiguous beginning of a name for the name.

    It takes underscores for dashes, and what follows a dot for a part of the value.
    """
    return {re.split(r"[=.]", each)[0].replace("_", "-") for each in engine_args if each.startswith("-")}


def _names_further_sources(engine_args: Sequence[str]) -> bool:
    names = option_names(engine_args)
    return bool(names & _SHORT) or any(
        option.startswith(name) for name in names if len(name) > len("--t") for option in FURTHER_SOURCES
    )
