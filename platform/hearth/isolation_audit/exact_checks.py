"""What must hold exactly, whatever the clock says: no request is ever given what another tenant had."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any, Literal
from uuid import uuid4

from hearth.isolation_audit.http_probe import HttpProbe, ProbeResponse
from hearth.isolation_audit.prompts import BYPASS_PREDICTION, CacheName, PromptGenerator
from hearth.isolation_audit.timing_attack import Pair, Tenant

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
class Attack:
    """What both send beside the same prompt, hoping to be taken for one."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def every_attack(shared: str) -> tuple[Attack, ...]:
    """Return names that some gateway takes for the owner of a cache, all of them ``shared``, and controls of caches."""
    return (
        Attack(name="nothing but the same prompt"),
        Attack(name="cache_salt", fields={"cache_salt": shared}),
        Attack(name="prompt_cache_key", fields={"prompt_cache_key": shared}),
        Attack(name="user", fields={"user": shared}),
        Attack(name="safety_identifier", fields={"safety_identifier": shared}),
        Attack(name="metadata", fields={"metadata": {"tenant": shared}}),
        Attack(name="session", headers={"x-session-id": shared}),
        Attack(name="request id", headers={"x-request-id": shared}),
        Attack(name="tenant", headers={"x-tenant-id": shared, "x-cache-salt": shared, "x-cache-key": shared}),
        Attack(name="organisation", headers={"openai-organization": shared, "openai-project": shared}),
        Attack(name="idempotency key", headers={"idempotency-key": shared}),
        Attack(name="x-prediction-cache", headers={"x-prediction-cache": "on"}),
        Attack(name="max-age", headers={"cache-control": "max-age=86400"}),
        Attack(name="only-if-cached", headers={"cache-control": "only-if-cached"}),
        Attack(name="streamed", fields={"stream": True, "stream_options": {"include_usage": True}}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeKeys:
    """Two keys of one tenant whose policy has this scope: two projects' for ``project``, else one project's."""

    scope: Literal["tenant", "project", "key"]
    first: str
    second: str


def timed_responses(cache: CacheName, pairs: Iterable[Pair], own_tokens: int) -> Check:
    """Check the answers that were timed: x-cache, ids, and cached tokens beyond the attacker's own."""
    against, tried = [], 0
    for tried, pair in enumerate(pairs, 1):
        if pair.is_hit:
            against.append(f"pair {tried}: x-cache {pair.cached.x_cache}, the victim's answer")
        elif pair.cached.cached_tokens > own_tokens:
            against.append(f"pair {tried}: {pair.cached.cached_tokens} cached tokens")
    return Check(name=f"{cache} cache: no answer or token of the victim's", tried=tried, against=tuple(against))


def hits_reported(pairs: Iterable[Pair], own_tokens: int) -> int:
    """Return how many answers say themselves that they, or tokens of their prompt, were cached."""
    return sum(pair.is_hit or pair.cached.cached_tokens > own_tokens for pair in pairs)


def own_tokens(pairs: Iterable[Pair]) -> int:
    """Return how many tokens of a prompt that nobody had are cached all the same: the template's, of their own."""
    return max((pair.fresh.cached_tokens for pair in pairs), default=0)


def attacks(generator: PromptGenerator, victim: Tenant, attacker: Tenant) -> Check:
    """Let both send the same prompt with the same attack. Raises AuditFailed."""
    against, known = [], every_attack(f"shared-{uuid4().hex}")
    for attack in known:
        content = generator.opening(generator.prefix_words)
        body = generator.body(content, **attack.fields)
        unrelated = generator.body(generator.opening(generator.prefix_words))
        own = attacker.probes[0].send_with_retry(unrelated, {}).cached_tokens
        sent_by_victim = [
            victim.probes[0].send_with_retry(generator.body(content), {}),
            victim.probes[0].send_with_retry(body, attack.headers, refused=True),
        ]
        answer = attacker.probes[0].send_with_retry(body, attack.headers, refused=True)
        is_victims = bool(answer.response_id) and answer.response_id in {each.response_id for each in sent_by_victim}
        if is_victims or answer.is_shared or answer.cached_tokens > own:
            against.append(f"{attack.name}: x-cache {answer.x_cache}, {answer.cached_tokens} cached tokens")
    return Check(name="no header, salt, session or user changes that", tried=len(known), against=tuple(against))


def concurrent_requests(generator: PromptGenerator, victim: Tenant, attacker: Tenant) -> Check:
    """Let both send the same prompt at the same moment: neither may follow the other's. Raises AuditFailed."""
    against = []
    with ThreadPoolExecutor(2) as pool:
        for number in range(CONCURRENT_ROUNDS):
            body, meeting = (
                generator.body(generator.opening(generator.prefix_words)),
                Barrier(2, timeout=MEETING_SECONDS),
            )
            asked = [pool.submit(_together, tenant.probes[0], body, meeting) for tenant in (victim, attacker)]
            one, other = (each.result() for each in asked)
            if one.is_shared or other.is_shared or one.response_id == other.response_id:
                against.append(f"round {number + 1}: x-cache {one.x_cache} and {other.x_cache}")
    name = "identical requests at one moment are not answered together"
    return Check(name=name, tried=CONCURRENT_ROUNDS, against=tuple(against))


def scope(generator: PromptGenerator, api_base: str, keys: ScopeKeys) -> Check:
    """Check that what two keys of one tenant share is what its policy says, in both caches. Raises AuditFailed."""
    probes = [HttpProbe(api_base, key) for key in (keys.first, keys.second)]
    shares = keys.scope == "tenant"
    try:
        statements = [*_predictions(generator, *probes, shares=shares), *_prefixes(generator, *probes, shares=shares)]
    finally:
        for probe in probes:
            probe.close()
    wrong = tuple(statement for statement, holds in statements if not holds)
    return Check(name=f"scope {keys.scope} is kept", tried=len(statements), against=wrong)


def _predictions(
    generator: PromptGenerator, first: HttpProbe, second: HttpProbe, *, shares: bool
) -> list[tuple[str, bool]]:
    body = generator.prompt("prediction").victim_request
    first.send_with_retry(body, {})
    time.sleep(STORED_EVERYWHERE_SECONDS)
    own, other = first.send_with_retry(body, {}), second.send_with_retry(body, {})
    return [
        (f"a key's own repeat: x-cache {own.x_cache}", own.x_cache == "hit"),
        (f"another key's: x-cache {other.x_cache}", other.is_shared is shares),
    ]


def _prefixes(
    generator: PromptGenerator, first: HttpProbe, second: HttpProbe, *, shares: bool
) -> list[tuple[str, bool]]:
    """Where tokens must be shared nothing is said: the other key may be sent to another replica."""
    prompt, fresh = generator.prompt("prefix"), generator.prompt("prefix")
    first.send_with_retry(prompt.victim_request, BYPASS_PREDICTION)
    own = second.send_with_retry(fresh.attacker_request, BYPASS_PREDICTION).cached_tokens
    found = second.send_with_retry(prompt.attacker_request, BYPASS_PREDICTION).cached_tokens
    return [(f"another key's prefix: {found} cached tokens, of its own {own}", shares or found <= own)]


def _together(probe: HttpProbe, body: bytes, meeting: Barrier) -> ProbeResponse:
    meeting.wait()
    return probe.send_with_retry(body, {})
