"""What must hold exactly, whatever the clock says: no request is ever given what another tenant had."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any, Literal
from uuid import uuid4

from hearth.isolation_audit.http_probe import Answer, Line
from hearth.isolation_audit.prompts import PAST_PREDICTION, CacheName, Phrasebook
from hearth.isolation_audit.timing_attack import Pair, Party

#: Times that both ask the same at the same moment.
CONCURRENT_ROUNDS = 20
#: Until an answer is in Redis too, where the gateway's other processes find it.
STORED_EVERYWHERE_SECONDS = 0.2
#: Until both threads are there.
MEETING_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One statement that was tried, and what speaks against it: nothing when it holds."""

    name: str
    tried: int
    against: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.against


@dataclass(frozen=True, slots=True, kw_only=True)
class Trick:
    """What both send beside the same prompt, hoping to be taken for one."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def every_trick(shared: str) -> tuple[Trick, ...]:
    """Return names that some gateway takes for the owner of a cache, all of them ``shared``, and controls of caches."""
    return (
        Trick(name="nothing but the same prompt"),
        Trick(name="cache_salt", fields={"cache_salt": shared}),
        Trick(name="prompt_cache_key", fields={"prompt_cache_key": shared}),
        Trick(name="user", fields={"user": shared}),
        Trick(name="safety_identifier", fields={"safety_identifier": shared}),
        Trick(name="metadata", fields={"metadata": {"tenant": shared}}),
        Trick(name="session", headers={"x-session-id": shared}),
        Trick(name="request id", headers={"x-request-id": shared}),
        Trick(name="tenant", headers={"x-tenant-id": shared, "x-cache-salt": shared, "x-cache-key": shared}),
        Trick(name="organisation", headers={"openai-organization": shared, "openai-project": shared}),
        Trick(name="idempotency key", headers={"idempotency-key": shared}),
        Trick(name="x-prediction-cache", headers={"x-prediction-cache": "on"}),
        Trick(name="max-age", headers={"cache-control": "max-age=86400"}),
        Trick(name="only-if-cached", headers={"cache-control": "only-if-cached"}),
        Trick(name="streamed", fields={"stream": True, "stream_options": {"include_usage": True}}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeKeys:
    """Two keys of one tenant whose policy has this scope: two projects' for ``project``, else one project's."""

    scope: Literal["tenant", "project", "key"]
    first: str
    second: str


def of_pairs(cache: CacheName, pairs: Iterable[Pair], own_tokens: int) -> Check:
    """Check the answers that were timed: x-cache, ids, and cached tokens beyond the attacker's own."""
    against, tried = [], 0
    for tried, pair in enumerate(pairs, 1):
        if pair.is_hit:
            against.append(f"pair {tried}: x-cache {pair.cached.x_cache}, the victim's answer")
        elif pair.cached.cached_tokens > own_tokens:
            against.append(f"pair {tried}: {pair.cached.cached_tokens} cached tokens")
    return Check(name=f"{cache} cache: no answer or token of the victim's", tried=tried, against=tuple(against))


def told(pairs: Iterable[Pair], own_tokens: int) -> int:
    """Return how many answers say themselves that they, or tokens of their prompt, were cached."""
    return sum(pair.is_hit or pair.cached.cached_tokens > own_tokens for pair in pairs)


def own_tokens(pairs: Iterable[Pair]) -> int:
    """Return how many tokens of a prompt that nobody had are cached all the same: the template's, of their own."""
    return max((pair.fresh.cached_tokens for pair in pairs), default=0)


def tricks(phrasebook: Phrasebook, victim: Party, attacker: Party) -> Check:
    """Let both send the same prompt with the same trick. Raises AuditFailed."""
    against, known = [], every_trick(f"shared-{uuid4().hex}")
    for trick in known:
        content = phrasebook.opening(phrasebook.prefix_words)
        body = phrasebook.body(content, **trick.fields)
        own = attacker.lines[0].insist(phrasebook.body(phrasebook.opening(phrasebook.prefix_words)), {}).cached_tokens
        told = [
            victim.lines[0].insist(phrasebook.body(content), {}),
            victim.lines[0].insist(body, trick.headers, refused=True),
        ]
        answer = attacker.lines[0].insist(body, trick.headers, refused=True)
        is_victims = bool(answer.answer_id) and answer.answer_id in {each.answer_id for each in told}
        if is_victims or answer.from_another or answer.cached_tokens > own:
            against.append(f"{trick.name}: x-cache {answer.x_cache}, {answer.cached_tokens} cached tokens")
    return Check(name="no header, salt, session or user changes that", tried=len(known), against=tuple(against))


def at_once(phrasebook: Phrasebook, victim: Party, attacker: Party) -> Check:
    """Let both send the same prompt at the same moment: neither may follow the other's. Raises AuditFailed."""
    against = []
    with ThreadPoolExecutor(2) as pool:
        for number in range(CONCURRENT_ROUNDS):
            body, meeting = (
                phrasebook.body(phrasebook.opening(phrasebook.prefix_words)),
                Barrier(2, timeout=MEETING_SECONDS),
            )
            asked = [pool.submit(_together, party.lines[0], body, meeting) for party in (victim, attacker)]
            one, other = (each.result() for each in asked)
            if one.from_another or other.from_another or one.answer_id == other.answer_id:
                against.append(f"round {number + 1}: x-cache {one.x_cache} and {other.x_cache}")
    name = "identical requests at one moment are not answered together"
    return Check(name=name, tried=CONCURRENT_ROUNDS, against=tuple(against))


def scope(phrasebook: Phrasebook, api_base: str, keys: ScopeKeys) -> Check:
    """Check that what two keys of one tenant share is what its policy says, in both caches. Raises AuditFailed."""
    lines = [Line(api_base, key) for key in (keys.first, keys.second)]
    shares = keys.scope == "tenant"
    try:
        statements = [*_predictions(phrasebook, *lines, shares=shares), *_prefixes(phrasebook, *lines, shares=shares)]
    finally:
        for line in lines:
            line.close()
    wrong = tuple(statement for statement, holds in statements if not holds)
    return Check(name=f"scope {keys.scope} is kept", tried=len(statements), against=wrong)


def _predictions(phrasebook: Phrasebook, first: Line, second: Line, *, shares: bool) -> list[tuple[str, bool]]:
    body = phrasebook.prompt("prediction").told
    first.insist(body, {})
    time.sleep(STORED_EVERYWHERE_SECONDS)
    own, other = first.insist(body, {}), second.insist(body, {})
    return [
        (f"a key's own repeat: x-cache {own.x_cache}", own.x_cache == "hit"),
        (f"another key's: x-cache {other.x_cache}", other.from_another is shares),
    ]


def _prefixes(phrasebook: Phrasebook, first: Line, second: Line, *, shares: bool) -> list[tuple[str, bool]]:
    """Where tokens must be shared nothing is said: the other key may be sent to another replica."""
    prompt, fresh = phrasebook.prompt("prefix"), phrasebook.prompt("prefix")
    first.insist(prompt.told, PAST_PREDICTION)
    own = second.insist(fresh.guessed, PAST_PREDICTION).cached_tokens
    found = second.insist(prompt.guessed, PAST_PREDICTION).cached_tokens
    return [(f"another key's prefix: {found} cached tokens, of its own {own}", shares or found <= own)]


def _together(line: Line, body: bytes, meeting: Barrier) -> Answer:
    meeting.wait()
    return line.insist(body, {})
