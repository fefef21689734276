"""What operators can do to the fleet: one table of names, arguments and texts.

``celery control``, ``celery fleet``, the API's documentation and the dialogs of the fleet page all take their words
from it. ``workers.fleet.operations`` does the work.

Importing this imports no models: every ``celery`` command does it, before Django is set up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenants.audit import Actor
    from workers.fleet.operations import Effect

#: As a target: let it be learned.
LEARNED = "auto"
RANGE = "number of replicas or range like 1-4"
#: Numbers with more digits are larger than any bound.
MAX_DIGITS = 12
#: Most words of an argument that takes several.
MOST_WORDS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb: its arguments in order, of which the last ``optional`` may be left out.

    ``several``: the last argument takes up to MOST_WORDS words.
    """

    name: str
    arguments: tuple[str, ...]
    optional: int = 0
    several: bool = False
    #: One line, for lists of commands.
    summary: str
    #: What happens, for somebody who is about to confirm it.
    effect: str
    example: str
    #: Whether it ends something that runs and is not replaced first.
    danger: bool = False
    run: Callable[..., Effect]

    @property
    def words(self) -> str:
        """Return the name as commands of a shell take it: ``rollout pause``."""
        return self.name.replace("_", " ")

    @property
    def signature(self) -> str:
        """Return the arguments as help texts show them."""
        required = len(self.arguments) - self.optional
        words = [name.upper() for name in self.arguments]
        shown = words[:required] + [f"[{word}]" for word in words[required:]]
        return " ".join(shown) + ("..." if self.several else "")

    @property
    def description(self) -> str:
        """Return the summary and the effect."""
        return f"{self.summary} {self.effect}"

    def execute(self, actor: Actor, given: Mapping[str, object]) -> Effect:
        """Parse the arguments, given by name, and run it; None means left out.

        Raises WorkerError; BadValue for a missing argument and for one that cannot be parsed.
        """
        from workers.errors import BadValue

        words = [_text(given[name]) for name in self.arguments if given.get(name) is not None]
        if len(words) < len(self.arguments) - self.optional:
            raise BadValue("command", f"{self.words} {' '.join(words)}".strip(), f"{self.words} {self.signature}")
        effect: Effect = self.run(actor, *words)
        return effect


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def parse_range(text: str) -> tuple[int, int | None]:
    """Parse ``3`` as (3, None) and ``1-4`` as (1, 4). Raises BadValue."""
    minimum, dash, maximum = text.partition("-")
    return _parse_count(minimum, RANGE, text), _parse_count(maximum, RANGE, text) if dash else None


def _parse_count(text: str, what: str, given: str | None = None) -> int:
    """Parse a whole number that is not negative. Raises BadValue with ``given``, the whole argument."""
    from workers.errors import BadValue

    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
        raise BadValue(what, text if given is None else given, "0, 1, 2 …")
    return int(text)


def _parse_seconds(text: str) -> float:
    """Parse a time. Raises BadValue; the operation checks its range."""
    from workers.errors import BadValue

    try:
        return float(text)
    except ValueError:
        raise BadValue("number of seconds", text, "5, 0.5 …") from None


def _operation(name: str) -> Callable[..., Effect]:
    """Return a function that runs the operation of that name, and imports it only then."""

    def run(actor: Actor, *words: str) -> Effect:
        from workers.fleet import operations

        effect: Effect = getattr(operations, name)(actor, *words)
        return effect

    return run


def _scale(actor: Actor, deployment: str, replicas: str) -> Effect:
    from workers.fleet import operations

    return operations.scale(actor, deployment, *parse_range(replicas))


def _target(actor: Actor, deployment: str, tokens: str, up_after: str, down_after: str) -> Effect:
    from workers.fleet import operations

    target = operations.ScalingTarget(
        target_tokens_per_replica=None
        if tokens == LEARNED
        else _parse_count(tokens, f"number of tokens, or {LEARNED}"),
        scale_up_delay_seconds=_parse_seconds(up_after),
        scale_down_delay_seconds=_parse_seconds(down_after),
    )
    return operations.set_target(actor, deployment, target)


def _route(actor: Actor, deployment: str, policy: str) -> Effect:
    from catalogue import routing_policy
    from workers.errors import BadValue
    from workers.fleet import operations

    try:
        parsed = routing_policy.parse(policy)
    except routing_policy.BadPolicy as error:
        raise BadValue(error.what, str(error.value), error.allowed) from None
    return operations.route(actor, deployment, parsed)


def _warm(actor: Actor, pool: str, per_node: str, level: str | None = None) -> Effect:
    from workers.fleet import operations

    return operations.warm(actor, pool, _parse_count(per_node, "number of placeholders"), level)


_TABLE = (
    Verb(
        name="scale",
        arguments=("deployment", "replicas"),
        summary="Set how many replicas a deployment has: N, or a range MIN-MAX.",
        effect="Scaling moves between the two bounds with the load; set both to the same number for a fixed size. "
        "Surplus replicas finish their requests first. Nodes on which the deployment failed are tried again.",
        example="scale chat 1-4",
        run=_scale,
    ),
    Verb(
        name="target",
        arguments=("deployment", "tokens", "up_after", "down_after"),
        summary="Set the target load of one replica, in tokens in flight or auto, and the seconds before scaling acts.",
        effect="Scaling keeps enough replicas for each to have about this many prompt and completion tokens in flight; "
        "auto learns the number from the rates that are measured, for each pool. Replicas start or "
        "stop once the load has required that for the given time.",
        example="target chat 16384 5 300",
        run=_target,
    ),
    Verb(
        name="objective",
        arguments=("deployment", "objectives"),
        optional=1,
        several=True,
        summary="Set what scaling follows beside tokens in flight: ttft_seconds=1.5 and kv_usage=0.9; or nothing.",
        effect="Scaling adds a replica while the mean time to the first token is above the objective and requests "
        "queue in engines, and as many as bring the KV caches to the share given. What is left out is not followed.",
        example="objective chat ttft_seconds=1.5 kv_usage=0.9",
        run=_operation("set_objectives"),
    ),
    Verb(
        name="require",
        arguments=("deployment", "requirements"),
        optional=1,
        several=True,
        summary="Set what a deployment requires of its pools: gpu_types=H100,H200 and labels=NAME:VALUE,…; or nothing.",
        effect="New replicas are placed only in those of its pools that have one of the GPU types and every label. "
        "Replicas that are in other pools stay until they are drained.",
        example="require chat gpu_types=H100,H200 labels=net:ib",
        run=_operation("require"),
    ),
    Verb(
        name="route",
        arguments=("deployment", "policy"),
        summary="Set how a deployment's requests choose a replica: expected-seconds, least-loaded, round-robin or "
        "session.",
        effect="Gateways follow within a second. Weights of the terms of expected-seconds, 0 to 10, may stand after a "
        "colon; those left out are 1. Sessions of tenants with strict affinity stay at home under every policy.",
        example="route chat expected-seconds:displaced=0.5,decode=2",
        run=_route,
    ),
    Verb(
        name="drain",
        arguments=("target",),
        summary="Replace a replica (given by the end of its id), or everything on a node (given by its name).",
        effect="A replica serves until its replacement is ready, or stops at once if no node has room for one. Its "
        "running requests may finish within its deployment's drain time. A node is also cordoned, and its "
        "placeholders are evicted.",
        example="drain n1",
        run=_operation("drain"),
    ),
    Verb(
        name="cordon",
        arguments=("node",),
        summary="Place nothing new on a node.",
        effect="New replicas and placeholders are placed elsewhere. What runs on the node continues.",
        example="cordon n1",
        run=_operation("cordon"),
    ),
    Verb(
        name="uncordon",
        arguments=("node",),
        summary="Allow new replicas and placeholders on a node again.",
        effect="If the node was drained, those of its replicas that have not begun to stop stay.",
        example="uncordon n1",
        run=_operation("uncordon"),
    ),
    Verb(
        name="evict",
        arguments=("placeholder",),
        summary="Free a placeholder's slot.",
        effect="The slot is free at once and the placeholder's process is killed. The pool makes a new placeholder "
        "while it has fewer than it keeps, so this renews one that went wrong.",
        example="evict 3fa9c1",
        danger=True,
        run=_operation("evict"),
    ),
    Verb(
        name="warm",
        arguments=("pool", "per_node", "level"),
        optional=1,
        summary="Set how many placeholders a pool keeps on each node, and at which level: h0 or h2.",
        effect="Each node keeps that many while it has slots for them. At h2 a process has imported the engine and can "
        "become a replica; at h0 only the slot is reserved. Placeholders of another level are replaced.",
        example="warm local 2 h2",
        run=_warm,
    ),
    Verb(
        name="pool_set",
        arguments=("pool", "settings"),
        several=True,
        summary="Set what a pool is: priority, region, water marks, GPU type, labels, cost; kind=gpu makes a new one.",
        effect="Settings are NAME=VALUE; what is left out stays. The pool with the lowest priority keeps its "
        "placeholders first. Above high_water a deployment's next pool is prepared, below low_water it is released. "
        "Deployments may require gpu_type and labels; slot_hour_usd is what one slot costs in an hour.",
        example="pool set h100-eu priority=10 gpu_type=H100 labels=net:ib slot_hour_usd=2.50",
        run=_operation("pool_set"),
    ),
    Verb(
        name="promote",
        arguments=("placeholder", "deployment"),
        summary="Make a warm placeholder a replica of a deployment now.",
        effect="Its process becomes a replica: one more than the deployment has, within its maximum. Scaling may stop "
        "that replica later, like any other.",
        example="promote 3fa9c1 chat",
        run=_operation("promote"),
    ),
    Verb(
        name="restore",
        arguments=("node", "device"),
        summary="Use a quarantined slot again.",
        effect="Replicas and placeholders may have the slot again. Its agent quarantines it again if it still fails.",
        example="restore n1 cpu-0",
        run=_operation("restore"),
    ),
    Verb(
        name="rollout_pause",
        arguments=("deployment",),
        summary="Keep a deployment's old and new replicas as they are.",
        effect="No further replica is replaced until you resume it. A bound that is passed still undoes the rollout.",
        example="rollout pause chat",
        run=_operation("rollout_pause"),
    ),
    Verb(
        name="rollout_resume",
        arguments=("deployment",),
        summary="Let a paused rollout go on.",
        effect="Replicas are replaced again, as the deployment's rollout policy says.",
        example="rollout resume chat",
        run=_operation("rollout_resume"),
    ),
    Verb(
        name="rollout_undo",
        arguments=("deployment",),
        summary="Return to what a deployment served before its open rollout, or before the last one that is done.",
        effect="Replicas of the earlier revision are started again, and the new ones stop as these serve.",
        example="rollout undo chat",
        run=_operation("rollout_undo"),
    ),
    Verb(
        name="rollout_restart",
        arguments=("deployment",),
        summary="Replace every replica of a deployment by another one of the same revision.",
        effect="It is a rollout like any other: new replicas serve before old ones stop, and it can be paused.",
        example="rollout restart chat",
        run=_operation("rollout_restart"),
    ),
    Verb(
        name="rollout_policy",
        arguments=("deployment", "settings"),
        several=True,
        summary="Set how a deployment's replicas are replaced: how many at once, and what undoes a rollout.",
        effect="Settings are NAME=NUMBER, nothing for the default; what is left out stays. canaries=JSON, the last "
        "one, is a list of prompts, each with what its answer contains, equals or matches. An open rollout goes on by "
        "the new policy.",
        example="rollout policy chat max_surge=2 min_ready_seconds=30 max_ttft_seconds=2",
        run=_operation("rollout_policy"),
    ),
)
VERBS: Mapping[str, Verb] = {verb.name: verb for verb in _TABLE}
