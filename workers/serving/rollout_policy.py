"""How a deployment's replicas are replaced when what it serves changes: how many at once, and what ends a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from workers.errors import BadValue
from workers.serving import answer_patterns

#: Of replicas at once, of prompts, and of the characters of one.
MOST_AT_ONCE = 100
MOST_CANARIES = 20
MOST_CHARACTERS = 20_000
#: A day.
MOST_SECONDS = 86_400
#: Failures and slow answers count as shares of at least this many requests: the first few do not decide.
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
    equals: Annotated[
        str, Meta(max_length=MOST_CHARACTERS, description="What the answer has to be, without blanks around it.")
    ] = ""
    matches: Annotated[
        str,
        Meta(
            max_length=answer_patterns.MOST_CHARACTERS,
            description="A regular expression of RE2 that has to match somewhere in the answer, as (?i)^paris.",
        ),
    ] = ""
    is_json: Annotated[bool, Meta(description="Whether the answer has to be a JSON document.")] = False
    max_tokens: Annotated[int, Meta(ge=1, le=4096)] = 16

    def __post_init__(self) -> None:
        """Raise BadPattern, a ValueError."""
        if self.matches:
            answer_patterns.check(self.matches)


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
#: The settings that are numbers.
NUMBERS = tuple(name for name in RolloutPolicy.__struct_fields__ if name != "canaries")


def read(stored: object) -> RolloutPolicy:
    """Return the policy in a row; the default for None."""
    return DEFAULT if stored is None else msgspec.convert(stored, RolloutPolicy)


def to_json(policy: RolloutPolicy) -> dict[str, Any] | None:
    """Return the policy for a row; None for the default."""
    found: dict[str, Any] = msgspec.to_builtins(policy)
    return found or None


def changed(present: RolloutPolicy, given: Mapping[str, Any]) -> RolloutPolicy:
    """Return a policy with these fields; None for one is its default. Raises BadValue."""
    known = RolloutPolicy.__struct_fields__
    for name in given:
        if name not in known:
            raise BadValue("rollout setting", name, f"one of {', '.join(known)}")
    stored: dict[str, Any] = msgspec.to_builtins(present) | dict(given)
    try:
        return msgspec.convert({name: value for name, value in stored.items() if value is not None}, RolloutPolicy)
    except msgspec.ValidationError as error:
        sentence, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`").partition("[")[0]
        raise BadValue(f"rollout setting {name}".rstrip(), str(given.get(name, "")), f"this: {sentence}") from None


def parse(text: str) -> dict[str, Any]:
    """Parse ``max_surge=2 max_ttft_seconds=`` into fields of a policy; nothing is the default. Raises BadValue.

    What follows ``canaries=`` to the end is a JSON list of canaries.
    """
    numbers, mark, prompts = text.partition("canaries=")
    found: dict[str, Any] = {"canaries": _canaries(prompts)} if mark else {}
    for word in numbers.split():
        name, equals, value = word.partition("=")
        if name not in NUMBERS or not equals:
            allowed = f"NAME=NUMBER with one of {', '.join(NUMBERS)}, or canaries=JSON as the last one"
            raise BadValue("rollout setting", word, allowed)
        try:
            found[name] = None if not value else int(value) if value.isdecimal() else float(value)
        except ValueError:
            raise BadValue(f"rollout setting {name}", value, "a number, or nothing for the default") from None
    return found


def words(policy: RolloutPolicy) -> str:
    """Return a policy as :func:`parse` reads it, without canaries."""
    shown = {name: getattr(policy, name) for name in NUMBERS}
    return " ".join(f"{name}={'' if value is None else f'{value:g}'}" for name, value in shown.items())


def canaries_json(policy: RolloutPolicy) -> str:
    """Return the canaries as :func:`parse` reads them; empty without any."""
    return msgspec.json.encode(policy.canaries).decode() if policy.canaries else ""


def _canaries(text: str) -> list[Any] | None:
    if not text.strip():
        return None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadValue("rollout setting canaries", text[:100], f'a JSON list as [{{"prompt": "…"}}]: {error}') from None
    if not isinstance(found, list):
        raise BadValue("rollout setting canaries", text[:100], 'a JSON list as [{"prompt": "…", "contains": "…"}]')
    return found
