"""How a deployment's replicas are replaced when what it serves changes: how many at once, and what ends a rollout."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

#: Of replicas at once, of prompts, and of the characters of one.
MOST_AT_ONCE = 100
MOST_CANARIES = 20
MOST_CHARACTERS = 20_000
#: A day.
MOST_SECONDS = 86_400
#: Failures and slow answers count as shares of at least so many requests: the first few do not decide.
LEAST_REQUESTS = 20
#: Share of the streams whose first token may be later than ``max_ttft_seconds``.
SLOW_SHARE = 0.05

_Count = Annotated[int, Meta(ge=0, le=MOST_AT_ONCE)]
_Seconds = Annotated[float, Meta(gt=0, le=MOST_SECONDS)]


class CanaryPrompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A prompt that every new replica has to answer before it gets requests.

    It is sent as a chat where the model has a chat template, else as text; a model of embeddings embeds it.
    """

    prompt: Annotated[str, Meta(min_length=1, max_length=MOST_CHARACTERS)]
    contains: Annotated[
        str, Meta(max_length=MOST_CHARACTERS, description="What the answer has to contain, in upper or lower case.")
    ] = ""
    max_tokens: Annotated[int, Meta(ge=1, le=4096)] = 16


class RolloutPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a rollout goes, and what makes it undo itself."""

    max_surge: Annotated[_Count, Meta(description="Replicas beyond the desired number while it goes on.")] = 1
    max_unavailable: Annotated[
        _Count, Meta(description="Replicas that may be missing where no node has room for another one.")
    ] = 1
    min_ready_seconds: Annotated[
        float, Meta(ge=0, le=MOST_SECONDS, description="How long a new replica serves before an old one stops for it.")
    ] = 10.0
    canaries: Annotated[tuple[CanaryPrompt, ...], Meta(max_length=MOST_CANARIES)] = ()
    max_ttft_seconds: Annotated[
        _Seconds | None,
        Meta(description="Until the first token: of every canary, and of all but 5 % of the streams of new replicas."),
    ] = None
    max_tpot_seconds: Annotated[_Seconds | None, Meta(description="From token to token of a canary, on average.")] = (
        None
    )
    max_error_share: Annotated[
        float, Meta(ge=0, le=1, description="Of the requests to new replicas, those that engines may fail.")
    ] = 0.05
    max_failed_starts: Annotated[int, Meta(ge=0, le=1000, description="Of new replicas, crashes included.")] = 2


DEFAULT = RolloutPolicy()


def read(stored: object) -> RolloutPolicy:
    """Return the policy in a row; the default for None."""
    return DEFAULT if stored is None else msgspec.convert(stored, RolloutPolicy)


def to_json(policy: RolloutPolicy) -> dict[str, Any] | None:
    """Return the policy for a row; None for the default."""
    found: dict[str, Any] = msgspec.to_builtins(policy)
    return found or None
