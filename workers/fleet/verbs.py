"""The verbs of ``workers.fleet.operations`` as words on a command line, for ``celery control`` and ``celery fleet``
alike.

Importing this imports no models: every ``celery`` command does it, before Django is set up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenants.audit import Actor
    from workers.fleet.operations import Effect

BOUNDS = "number of replicas or range like 1-4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb: its arguments in order, the last ``optional`` of which may be left out."""

    name: str
    arguments: tuple[str, ...]
    optional: int = 0
    help: str
    example: str
    act: Callable[..., Effect]

    @property
    def signature(self) -> str:
        """Return the arguments as help texts show them."""
        must = len(self.arguments) - self.optional
        words = [name.upper() for name in self.arguments]
        return " ".join(words[:must] + [f"[{word}]" for word in words[must:]])

    def __call__(self, actor: Actor, given: Mapping[str, object]) -> Effect:
        """Do it with the arguments given by name; None counts as left out.

        Raises WorkerError; BadValue for a missing argument.
        """
        from workers.errors import BadValue

        words = [str(given[name]) for name in self.arguments if given.get(name) is not None]
        if len(words) < len(self.arguments) - self.optional:
            raise BadValue("way to call it", f"{self.name} {' '.join(words)}".strip(), f"{self.name} {self.signature}")
        effect: Effect = self.act(actor, *words)
        return effect


def bounds(text: str) -> tuple[int, int | None]:
    """Read ``3`` as (3, None) and ``1-4`` as (1, 4). Raises BadValue."""
    least, dash, most = text.partition("-")
    return _whole(least, BOUNDS, text), _whole(most, BOUNDS, text) if dash else None


def _whole(text: str, what: str, given: str | None = None) -> int:
    """Read a whole number that is not negative. Raises BadValue with what was ``given``."""
    from workers.errors import BadValue

    if not text.isdecimal():
        raise BadValue(what, text if given is None else given, "0, 1, 2 …")
    return int(text)


def _seconds(text: str) -> float:
    """Read a time. Raises BadValue; its range is checked by the verb."""
    from workers.errors import BadValue

    try:
        return float(text)
    except ValueError:
        raise BadValue("number of seconds", text, "5, 0.5 …") from None


def _scale(actor: Actor, deployment: str, replicas: str) -> Effect:
    from workers.fleet import operations

    return operations.scale(actor, deployment, *bounds(replicas))


def _target(actor: Actor, deployment: str, tokens: str, up_after: str, down_after: str) -> Effect:
    from workers.fleet import operations

    target = operations.ScalingTarget(
        target_tokens_per_replica=_whole(tokens, "number of tokens"),
        scale_up_delay_seconds=_seconds(up_after),
        scale_down_delay_seconds=_seconds(down_after),
    )
    return operations.set_target(actor, deployment, target)


def _drain(actor: Actor, target: str) -> Effect:
    from workers.fleet import operations

    return operations.drain(actor, target)


def _cordon(actor: Actor, node: str) -> Effect:
    from workers.fleet import operations

    return operations.cordon(actor, node)


def _uncordon(actor: Actor, node: str) -> Effect:
    from workers.fleet import operations

    return operations.uncordon(actor, node)


def _evict(actor: Actor, placeholder: str) -> Effect:
    from workers.fleet import operations

    return operations.evict(actor, placeholder)


def _warm(actor: Actor, pool: str, per_node: str, level: str | None = None) -> Effect:
    from workers.fleet import operations

    return operations.warm(actor, pool, _whole(per_node, "number of placeholders"), level)


def _promote(actor: Actor, placeholder: str, deployment: str) -> Effect:
    from workers.fleet import operations

    return operations.promote(actor, placeholder, deployment)


def _restore(actor: Actor, node: str, device: str) -> Effect:
    from workers.fleet import operations

    return operations.restore(actor, node, device)


VERBS = (
    Verb(
        name="scale",
        arguments=("deployment", "replicas"),
        help="Set how many replicas a deployment has: N, or MIN-MAX for scaling to move between.",
        example="scale chat 1-4",
        act=_scale,
    ),
    Verb(
        name="target",
        arguments=("deployment", "tokens", "up_after", "down_after"),
        help="Set the tokens in flight that one replica is meant to have, and the seconds before scaling acts.",
        example="target chat 16384 5 300",
        act=_target,
    ),
    Verb(
        name="drain",
        arguments=("target",),
        help="Replace a replica (the end of its id), or empty a node (its name); it serves until others do.",
        example="drain n1",
        act=_drain,
    ),
    Verb(
        name="cordon",
        arguments=("node",),
        help="Start nothing new on a node; what it has goes on.",
        example="cordon n1",
        act=_cordon,
    ),
    Verb(
        name="uncordon",
        arguments=("node",),
        help="Offer a node again, and take back what of its drain has not begun.",
        example="uncordon n1",
        act=_uncordon,
    ),
    Verb(
        name="evict",
        arguments=("placeholder",),
        help="Free a placeholder's slot at once; its pool makes a new one unless `warm` says otherwise.",
        example="evict 3fa9c1",
        act=_evict,
    ),
    Verb(
        name="warm",
        arguments=("pool", "per_node", "level"),
        optional=1,
        help="Set how many placeholders a pool keeps on each node, and at which level: h0 or h2.",
        example="warm local 2 h2",
        act=_warm,
    ),
    Verb(
        name="promote",
        arguments=("placeholder", "deployment"),
        help="Make a warm placeholder a replica of a deployment now, within its maximum.",
        example="promote 3fa9c1 chat",
        act=_promote,
    ),
    Verb(
        name="restore",
        arguments=("node", "device"),
        help="Use a quarantined slot again.",
        example="restore n1 cpu-0",
        act=_restore,
    ),
)
