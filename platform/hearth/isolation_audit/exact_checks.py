"""Checks that must hold exactly, independent of time: no request ever gets another tenant's cached response."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any, Literal
from uuid import uuid4

from hearth.isolation_audit import prompts
from hearth.isolation_audit.http_probe import HttpProbe, ProbeResponse
from hearth.isolation_audit.prompts import BYPASS_PREDICTION, CacheName, PromptGenerator
from hearth.isolation_audit.timing_attack import Pair, Tenant

#: How often both tenants send the same request at the same moment.
CONCURRENT_ROUNDS = 20
#: Time for a response to reach Redis, where the gateway's other processes find it.
STORED_EVERYWHERE_SECONDS = 0.2
#: Longest wait for both threads to be ready.
MEETING_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One statement that was tested. ``against`` has the counterexamples; it is empty when the statement holds."""

    name: str
    tried: int
    against: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.against


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Fields and headers that both tenants send with the same prompt, to be treated as one tenant."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def every_attack(shared: str) -> tuple[Attack, ...]:
    """Return attacks with each identifier that may select a cache owner (all ``shared``), and with cache controls."""
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
        Attack(name="image", fields=prompts.with_image(shared)),
        Attack(name="uuid of an image", fields=prompts.with_image(shared, uuid=shared)),
        Attack(name="streamed", fields={"stream": True, "stream_options": {"include_usage": True}}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeKeys:
    """Two keys of one tenant with this cache scope: of two projects for ``project``, else of one project."""

    scope: Literal["tenant", "project", "key"]
    first: str
    second: str


def timed_responses(cache: CacheName, pairs: Iterable[Pair], own_tokens: int) -> Check:
    """Check the timed responses: x-cache, ids, and cached tokens beyond the attacker's own."""
    against, tried = [], 0
    for tried, pair in enumerate(pairs, 1):
        if pair.is_hit:
            against.append(f"pair {tried}: x-cache {pair.cached.x_cache}, the victim's response")
        elif pair.cached.cached_tokens > own_tokens:
            against.append(f"pair {tried}: {pair.cached.cached_tokens} cached tokens")
    return Check(
        name=f"{cache} cache: the attacker gets no response or cached token of the victim",
        tried=tried,
        against=tuple(against),
    )


def hits_reported(pairs: Iterable[Pair], own_tokens: int) -> int:
    """Return how many responses report that they, or tokens of their prompts, were cached."""
    return sum(pair.is_hit or pair.cached.cached_tokens > own_tokens for pair in pairs)


def own_tokens(pairs: Iterable[Pair]) -> int:
    """Return how many tokens of a new prompt are cached anyway: those of the chat template."""
    return max((pair.fresh.cached_tokens for pair in pairs), default=0)


def attacks(generator: PromptGenerator, victim: Tenant, attacker: Tenant) -> Check:
    """Send the same prompt with the same attack from both tenants. Raises AuditFailed."""
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
        response = attacker.probes[0].send_with_retry(body, attack.headers, refused=True)
        is_victims = bool(response.response_id) and response.response_id in {
            each.response_id for each in sent_by_victim
        }
        if is_victims or response.is_shared or response.cached_tokens > own:
            against.append(f"{attack.name}: x-cache {response.x_cache}, {response.cached_tokens} cached tokens")
    return Check(name="no header, salt, session or user field changes that", tried=len(known), against=tuple(against))


def concurrent_requests(generator: PromptGenerator, victim: Tenant, attacker: Tenant) -> Check:
    """Send the same prompt from both tenants at the same moment: they must not be coalesced. Raises AuditFailed."""
    against = []
    with ThreadPoolExecutor(2) as pool:
        for number in range(CONCURRENT_ROUNDS):
            body, barrier = (
                generator.body(generator.opening(generator.prefix_words)),
                Barrier(2, timeout=MEETING_SECONDS),
            )
            futures = [pool.submit(_together, tenant.probes[0], body, barrier) for tenant in (victim, attacker)]
            one, other = (each.result() for each in futures)
            if one.is_shared or other.is_shared or one.response_id == other.response_id:
                against.append(f"round {number + 1}: x-cache {one.x_cache} and {other.x_cache}")
    name = "identical concurrent requests of two tenants are not coalesced"
    return Check(name=name, tried=CONCURRENT_ROUNDS, against=tuple(against))


def scope(generator: PromptGenerator, api_base: str, keys: ScopeKeys) -> Check:
    """Check that two keys of one tenant share exactly what its policy says, in both caches. Raises AuditFailed."""
    probes = [HttpProbe(api_base, key) for key in (keys.first, keys.second)]
    shares = keys.scope == "tenant"
    try:
        statements = [*_predictions(generator, *probes, shares=shares), *_prefixes(generator, *probes, shares=shares)]
    finally:
        for probe in probes:
            probe.close()
    wrong = tuple(statement for statement, holds in statements if not holds)
    return Check(name=f"cache scope {keys.scope} is enforced", tried=len(statements), against=wrong)


def _predictions(
    generator: PromptGenerator, first: HttpProbe, second: HttpProbe, *, shares: bool
) -> list[tuple[str, bool]]:
    body = generator.prompt("prediction").victim_request
    first.send_with_retry(body, {})
    time.sleep(STORED_EVERYWHERE_SECONDS)
    own, other = first.send_with_retry(body, {}), second.send_with_retry(body, {})
    return [
        (f"repeat with the same key: x-cache {own.x_cache}", own.x_cache == "hit"),
        (f"repeat with another key: x-cache {other.x_cache}", other.is_shared is shares),
    ]


def _prefixes(
    generator: PromptGenerator, first: HttpProbe, second: HttpProbe, *, shares: bool
) -> list[tuple[str, bool]]:
    """Check only that nothing is shared where it must not be: the second key may be routed to another replica."""
    prompt, fresh = generator.prompt("prefix"), generator.prompt("prefix")
    first.send_with_retry(prompt.victim_request, BYPASS_PREDICTION)
    own = second.send_with_retry(fresh.attacker_request, BYPASS_PREDICTION).cached_tokens
    found = second.send_with_retry(prompt.attacker_request, BYPASS_PREDICTION).cached_tokens
    return [(f"prefix of another key: {found} cached tokens, own prefix: {own}", shares or found <= own)]


def _together(probe: HttpProbe, body: bytes, barrier: Barrier) -> ProbeResponse:
    barrier.wait()
    return probe.send_with_retry(body, {})
