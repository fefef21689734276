"""The engine's arguments that Hearth sets by itself, so that nobody gives them as raw arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from workers.engines import arguments
from workers.engines.options.flags import ARGUMENTS

_LISTENS = "Hearth chooses where each engine listens."
_KEYS = "Hearth gives each engine a key of its own."
_TLS = "Hearth gives engines that other machines reach the certificate of their node (HEARTH_ENGINE_TLS)."
_ONE_NODE = "A replica is one server on one node: use more replicas, or `hearth deploy --slots-per-replica`."
#: The arguments, and what to do instead.
OWN_ARGUMENTS = {
    "--revision": "Use `hearth deploy --revision`.",
    "--model": "Use `hearth deploy --source`.",
    "--tokenizer-revision": "Use `hearth deploy --revision`, which holds for the tokenizer too.",
    "--max-model-len": "Use `hearth deploy --context-tokens`.",
    "--tensor-parallel-size": "Use `hearth deploy --slots-per-replica`.",
    "-tp": "Use `hearth deploy --slots-per-replica`.",
    **{
        argument: f"Use `hearth deploy --{option.replace('_', '-')}`."
        for option, arguments in ARGUMENTS.items()
        for argument in arguments
    },
    "--config": "Use the arguments themselves, because a file's content is no part of the revision.",
    "--served-model-name": "Use `hearth model rename`, or `hearth model alias` for a further name.",
    "--host": _LISTENS,
    "--port": _LISTENS,
    "--uds": _LISTENS,
    "--root-path": _LISTENS,
    "--grpc": _LISTENS,
    "--grpc-port": _LISTENS,
    "--api-key": _KEYS,
    "--ssl-": _TLS,
    "--headless": _ONE_NODE,
    "--nnodes": _ONE_NODE,
    "-n": _ONE_NODE,
    "--node-rank": _ONE_NODE,
    "-r": _ONE_NODE,
}
_NAMED = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
#: Arguments whose names begin one of those above.
_OTHERS = frozenset({"--tokenizer"})


@dataclass(frozen=True, slots=True)
class OwnArgument:
    """An argument of Hearth's own that was given, and what to do instead."""

    name: str
    instead: str


def find(engine_args: Sequence[str]) -> OwnArgument | None:
    """Return the first of these arguments that is Hearth's own; None if there is none."""
    for given in names(engine_args):
        for name, instead in OWN_ARGUMENTS.items():
            if _means(given, name):
                return OwnArgument(given if name.endswith("-") else name, instead)
    return None


def of_option(option: str, engine_args: Sequence[str]) -> str:
    """Return the argument among these that a typed option stands for; empty if there is none."""
    given = names(engine_args)
    return next((name for name in ARGUMENTS.get(option, ()) if any(_means(each, name) for each in given)), "")


def option_in(sentence: str) -> str | None:
    """Return the typed option whose argument a parser's sentence names; None if it names none."""
    given = set(_NAMED.findall(sentence))
    return next((option for option, names in ARGUMENTS.items() if given.intersection(names)), None)


def names(engine_args: Sequence[str]) -> list[str]:
    """Return the names of the options among the arguments, besides those that begin one of Hearth's own.

    Dashes alone name nothing.
    """
    return sorted(each for each in arguments.option_names(engine_args) - _OTHERS if each.strip("-"))


def _means(given: str, name: str) -> bool:
    """Return whether a parser takes ``given`` for ``name``: the whole, or any beginning of a long name.

    The value of a name of one letter may follow it at once; a name that ends with a dash is all that begin so.
    """
    if len(name) == 2 or (name.endswith("-") and given.startswith(name)):
        return given.startswith(name)
    return name.startswith(given)
