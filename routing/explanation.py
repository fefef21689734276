"""Explain a choice: the term that decided it, and where its prompt left what is warm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from typing import Protocol
from uuid import UUID

import msgspec

from catalogue.routing_policy import DEFAULT, EXPECTED_SECONDS, TERMS, RoutingPolicy
from routing.router import EQUAL_SECONDS, Candidate, Choice, Reason

#: Most candidates of a decision that is kept: the chosen one and the cheapest others.
MAX_CANDIDATES = 16
#: Characters of an id that lists show.
SHOWN = 6
#: Why a policy without a cost chose a replica, by what decided.
_WITHOUT_COST: Mapping[str, str] = {
    "home": "is the session's home",
    "idle": "waited longest for a request",
    "requests": "has the fewest requests",
}


class Decided(Protocol):
    """A choice among candidates."""

    @property
    def replica_id(self) -> UUID: ...
    @property
    def reason(self) -> Reason: ...
    @property
    def candidates(self) -> Sequence[Candidate]: ...
    @property
    def policy(self) -> RoutingPolicy: ...


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision as it is kept for operators: ids and numbers, nothing of the prompt."""

    request_id: UUID
    tenant_id: UUID
    model: str
    #: When, in Unix seconds.
    at: float
    replica_id: UUID
    reason: Reason
    #: The home of the request's session, if it has one.
    home: UUID | None
    #: As in :class:`PrefixMatch`.
    prompt_tokens: int
    nearest_warm_tokens: int
    diverged_message: int | None
    candidates: Sequence[Candidate]
    #: How many there were before the dearest were left out.
    candidates_count: int
    #: The policy that decided.
    policy: RoutingPolicy = DEFAULT


class PrefixMatch(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a prompt was expected to be cached, in estimated tokens."""

    prompt_tokens: int
    #: On the chosen replica, and the most on any candidate.
    warm_tokens: int
    nearest_warm_tokens: int
    #: The message, counted from 1, at which the prompt left the nearest warm prefix; None if all of it was warm.
    diverged_message: int | None


def chosen(found: Decided) -> Candidate:
    """Return the terms of the replica that was chosen."""
    return best_two(found)[0]


def best_two(found: Decided) -> tuple[Candidate, Candidate | None]:
    """Return the chosen replica's terms and those of the best other one with room, the runner-up, or None."""
    wanted, least, rank = found.replica_id, math.inf, _rank(found.policy)
    best = second = None
    for each in found.candidates:  # one pass: each request pays for it
        if each.replica_id == wanted:
            best = each
        elif (order := rank(each)) < least and not each.full:
            second, least = each, order
    assert best is not None, "the chosen replica is a candidate"
    return best, second


def ordered(found: Decided) -> list[Candidate]:
    """Return the candidates, the cheapest first, or the one with the fewest requests where no cost decides."""
    return sorted(found.candidates, key=_rank(found.policy))


def deciding_term(found: Decided) -> str | None:
    """Return in which term the chosen replica was cheaper than the runner-up by most; None without a runner-up.

    ``home`` or ``idle`` if both cost the same: the session's home was chosen, or who had waited longest for a request.
    ``requests`` if the policy counts those.
    """
    return _deciding_term(found, *best_two(found))


def outcome(found: Decided) -> str:
    """Return a sentence that says which replica was chosen, and why not the runner-up."""
    (best, second), term = best_two(found), deciding_term(found)
    name = f"{found.reason}: …{short(best.replica_id)}"
    if second is None:
        more = "; the others were full" if len(found.candidates) > 1 else ""
        return f"{name} was the only replica that could be tried{more}."
    other = f"…{short(second.replica_id)}"
    if found.policy.name != EXPECTED_SECONDS:
        return f"{name} {_WITHOUT_COST[term or '']}, by the policy {found.policy.name}."
    if best.cost - second.cost >= EQUAL_SECONDS:
        less = best.cost - second.cost
        return f"{name} is the session's home, where it stays; {other} costs {less:.3f} s less."
    if term == "home":
        return f"{name} is the session's home, and {other} costs the same."
    if term == "idle":
        return f"{name} waited longest for a request, and {other} costs the same."
    return f"{name} costs {second.cost - best.cost:.3f} s less than {other}; {term} differs most."


def short(replica_id: UUID) -> str:
    """Return the end of an id, which lists show."""
    return str(replica_id)[-SHOWN:]


def header(found: Decided) -> str:
    """Return the value of ``x-route``: the reason, an item of RFC 9651, with parameters."""
    best, second = best_two(found)
    term = _deciding_term(found, best, second)
    by = f"; by={term}" if term is not None else ""
    seconds = f"{best.backlog + best.prefill + best.reload:.2f}"
    return f"{found.reason}{by}; warm_tokens={best.warm_tokens}; seconds={seconds}; policy={found.policy.name}"


def prefix_match(choice: Choice) -> PrefixMatch | None:
    """Return how much of the prompt was expected to be cached; None if engines cache nothing of it."""
    prefix = choice.prefix
    if not prefix.hashes:
        return None
    depth = max([each.depth for each in choice.candidates])
    return PrefixMatch(
        prompt_tokens=prefix.tokens,
        warm_tokens=choice.warm_tokens,
        nearest_warm_tokens=max(choice.warm_tokens, prefix.tokens_of(depth)),
        diverged_message=prefix.message_at(depth),
    )


def decision(
    choice: Choice, match: PrefixMatch | None, *, request_id: UUID, tenant_id: UUID, model: str, at: float
) -> Decision:
    """Return what is kept of a choice. ``match``: see :func:`prefix_match`."""
    return Decision(
        request_id=request_id,
        tenant_id=tenant_id,
        model=model,
        at=at,
        replica_id=choice.replica_id,
        reason=choice.reason,
        home=choice.home,
        prompt_tokens=choice.prefix.tokens,
        nearest_warm_tokens=match.nearest_warm_tokens if match is not None else 0,
        diverged_message=match.diverged_message if match is not None else None,
        candidates=_kept(choice),
        candidates_count=len(choice.candidates),
        policy=choice.policy,
    )


def _deciding_term(found: Decided, best: Candidate, second: Candidate | None) -> str | None:
    if second is None:
        return None
    if found.policy.name != EXPECTED_SECONDS:
        in_turn = found.policy.name == "round-robin" or best.requests == second.requests
        return "home" if found.reason == "session" else "idle" if in_turn else "requests"
    if second.cost - best.cost < EQUAL_SECONDS:
        return "home" if found.reason == "session" else "idle"
    weights = found.policy.weights
    gains = [getattr(weights, term) * (getattr(second, term) - getattr(best, term)) for term in TERMS]
    return TERMS[gains.index(max(gains))]


def _kept(choice: Choice) -> Sequence[Candidate]:
    if len(choice.candidates) <= MAX_CANDIDATES:
        return choice.candidates
    others = [each for each in choice.candidates if each.replica_id != choice.replica_id]
    return [chosen(choice), *nsmallest(MAX_CANDIDATES - 1, others, key=_rank(choice.policy))]


def _rank(policy: RoutingPolicy) -> Callable[[Candidate], float]:
    return _cost if policy.name == EXPECTED_SECONDS else _requests


def _cost(candidate: Candidate) -> float:
    return candidate.cost


def _requests(candidate: Candidate) -> float:
    return candidate.requests
