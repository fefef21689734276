"""The options of `hearth up` and `hearth bootstrap`, and those with which a new node chooses its pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

import click

from hearth.instance.start_options import (
    DEFAULT_LEVEL,
    DEFAULT_PLACEHOLDERS,
    DEFAULT_REPLICAS,
    EngineChoice,
    PlaceholderLevel,
    PoolKind,
    PoolOptions,
    StartOptions,
)
from workers.engines.driver import DEFAULT_CONTEXT_TOKENS

Command = TypeVar("Command", bound=Callable[..., Any])

POOL_OPTIONS = (
    click.option("--pool", default="", help="Pool that this node joins when it is new. [local-cpu or local-gpu]"),
    click.option(
        "--pool-kind",
        type=click.Choice(get_args(PoolKind)),
        default="auto",
        help="Kind of that pool; auto: gpu where there is /dev/nvidia0. [auto]",
    ),
)
START_OPTIONS = (
    click.option(
        "--engine",
        type=click.Choice(get_args(EngineChoice)),
        help="auto: real vLLM, or the simulated engine with a loud warning where vLLM cannot be installed. [auto]",
    ),
    click.option("--model", help="Hugging Face id or folder. [the tiny chat model in the repository]"),
    click.option(
        "--context-tokens",
        type=click.IntRange(min=1),
        help="Longest prompt and response together, tokens. A folder whose model has less is served with what it has; "
        f"for a Hugging Face id with less, give it here. [{DEFAULT_CONTEXT_TOKENS}]",
    ),
    click.option("--replicas", type=click.IntRange(min=1), help=f"Engine replicas. [{DEFAULT_REPLICAS}]"),
    click.option(
        "--placeholders",
        type=click.IntRange(min=0),
        help="Warm placeholders on each node of the local pool: processes with the engine imported that become the "
        f"next replica. [{DEFAULT_PLACEHOLDERS}]",
    ),
    click.option(
        "--placeholder-level",
        type=click.Choice(get_args(PlaceholderLevel)),
        help=f"h2: a process with the engine imported; h0: only a free slot. [{DEFAULT_LEVEL}]",
    ),
    *POOL_OPTIONS,
)


def with_options(options: tuple[Callable[[Any], Any], ...]) -> Callable[[Command], Command]:
    """Return a decorator that adds the options, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def pool_options(given: Mapping[str, Any]) -> PoolOptions:
    """Return the pool of a new node, from the values of POOL_OPTIONS."""
    return PoolOptions(pool=given["pool"], pool_kind=given["pool_kind"])


def start_options(given: Mapping[str, Any]) -> StartOptions:
    """Return the options of a start, from the values of START_OPTIONS."""
    own = {name: value for name, value in given.items() if name not in {"pool", "pool_kind"}}
    return StartOptions(**own, new_node=pool_options(given))
