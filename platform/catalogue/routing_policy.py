"""How the requests of a deployment choose among its replicas: a built-in policy, and the weights of its cost's terms.

Pure: operators' settings are checked with it, gateways read it, and ``routing`` applies it.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal, get_args

import msgspec

PolicyName = Literal["expected-seconds", "least-loaded", "round-robin", "session"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
EXPECTED_SECONDS: PolicyName = "expected-seconds"
MAX_WEIGHT = 10.0


class Weights(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """By what each term of a replica's cost is multiplied; :class:`routing.router.Candidate` says what they are."""

    backlog: float = 1.0
    prefill: float = 1.0
    reload: float = 1.0
    displaced: float = 1.0
    decode: float = 1.0
    leaving: float = 1.0


#: The terms of a cost.
TERMS: tuple[str, ...] = Weights.__struct_fields__
EVEN = Weights()


class RoutingPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One policy.

    ``expected-seconds`` chooses the least weighted cost, ``least-loaded`` the fewest requests that run, ``round-robin``
    who has waited longest for a request, ``session`` the session's home, and the fewest requests without a session.
    """

    name: PolicyName = EXPECTED_SECONDS
    weights: Weights = EVEN

    def __str__(self) -> str:
        """Return the policy as commands take it: the name, and after a colon the weights that are not 1."""
        changed = {term: weight for term, weight in msgspec.structs.asdict(self.weights).items() if weight != 1}
        weights = ",".join(f"{term}={weight:.12g}" for term, weight in changed.items())
        return f"{self.name}:{weights}" if weights else self.name


DEFAULT = RoutingPolicy()


class BadPolicy(ValueError):
    """``value`` is not a valid ``what`` of a policy: ``field``, by its path; ``allowed`` describes those that are."""

    def __init__(self, field: str, value: object, allowed: str, what: str = "weight") -> None:
        super().__init__(f"{value!r} is not a valid {what}: use {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed
        self.what = what


def make(name: str, weights: dict[str, float] | None = None) -> RoutingPolicy:
    """Return the policy with these weights; terms without one have 1. Raises BadPolicy."""
    if name not in POLICIES:
        raise BadPolicy("policy", name, ", ".join(POLICIES), "routing policy")
    for term, weight in (weights or {}).items():
        if term not in TERMS:
            raise BadPolicy(f"weights.{term}", term, ", ".join(TERMS), "term")
        if not 0 <= weight <= MAX_WEIGHT:  # refuses NaN too
            raise BadPolicy(f"weights.{term}", weight, f"0 to {MAX_WEIGHT:g}")
    if weights and name != EXPECTED_SECONDS:
        raise BadPolicy("weights", ",".join(weights), f"weights with {EXPECTED_SECONDS} alone", "term")
    return msgspec.convert({"name": name, "weights": weights or {}}, RoutingPolicy)


Arm = Literal["A", "B"]
#: How many groups conversations are divided into. Each arm of a comparison has some of these groups.
GROUPS = 10_000


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two policies, each for a part of a deployment's conversations, from one time to another in Unix seconds."""

    #: Distinguishes it from others, in the split and in usage rows.
    name: str
    policy: RoutingPolicy
    against: RoutingPolicy
    #: Which share of the conversations goes by ``against``.
    share: float
    began: float
    until: float

    def split(self, conversation: bytes) -> tuple[Arm, str]:
        """Return a conversation's arm, and what usage rows say of it: comparison, arm and group of conversations."""
        digest = hashlib.blake2b(conversation, digest_size=8, key=self.name.encode()).digest()
        group = int.from_bytes(digest) % GROUPS
        arm: Arm = "B" if group < round(self.share * GROUPS) else "A"
        return arm, f"{self.name}-{arm}-{group}"


class Routing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a deployment says of routing. ``comparison``: the last one, which runs or has ended."""

    policy: RoutingPolicy = DEFAULT
    comparison: Comparison | None = None

    def of(self, conversation: bytes, now: float) -> tuple[RoutingPolicy, str]:
        """Return the policy for a conversation at a time in Unix seconds, and its split; empty without a comparison."""
        comparison = self.comparison
        if comparison is None or now >= comparison.until:
            return self.policy, ""
        arm, split = comparison.split(conversation)
        return comparison.policy if arm == "A" else comparison.against, split


DEFAULT_ROUTING = Routing()


def parse(text: str) -> RoutingPolicy:
    """Parse what commands take: ``least-loaded``, ``expected-seconds:displaced=0.5,decode=2``. Raises BadPolicy."""
    name, _, weights = text.partition(":")
    return make(name.strip(), _parse_weights(weights))


def to_json(routing: Routing) -> dict[str, object] | None:
    """Return what is stored; None for the default."""
    return None if routing == DEFAULT_ROUTING else msgspec.to_builtins(routing)


def read(stored: object) -> Routing:
    """Return what was stored; the default for what another version of Hearth knows and this one does not."""
    try:
        return msgspec.convert(stored or {}, Routing)
    except msgspec.ValidationError:
        return DEFAULT_ROUTING


@lru_cache(maxsize=1024)
def from_json(text: str | None) -> Routing:
    """Return what was stored, from JSON; see :func:`read`."""
    return read(msgspec.json.decode(text) if text else None)


def _parse_weights(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        term, _, number = (each.strip() for each in part.partition("="))
        try:
            found[term] = float(number)
        except ValueError:
            raise BadPolicy("weights", part, "a list like displaced=0.5,decode=2") from None
    return found
