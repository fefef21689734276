"""What an operator may do to the fleet from its page: what is asked before, the same as a command, and doing it.

The verbs themselves are ``workers.fleet.operations``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from portal.errors import BadQuery
from tenants.audit import Actor
from workers.errors import NotFound
from workers.fleet import lookup, operations
from workers.fleet.deployments import MAX_REPLICAS
from workers.fleet.operations import Effect, ScalingTarget
from workers.models import Deployment, DeploymentPool, Node, Placeholder, Pool, Replica, Slot

CONTROL = "celery -A hearth control"
#: Bounds of what the page's forms take.
MOST_TOKENS = 99_999_999
A_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One value that a verb wants: one of ``choices``, or a whole number between the bounds."""

    name: str
    label: str
    value: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked before a verb is done. ``command`` names its fields in braces."""

    verb: str
    #: As the page's address names it: a name, or an id.
    target: str
    title: str
    effect: str
    button: str
    command: str
    danger: bool = False
    fields: tuple[Field, ...] = field(default=())

    @property
    def shown_command(self) -> str:
        """The command with the values that the fields begin with."""
        return self.command.format(**{each.name: each.value for each in self.fields})


def ask(verb: str, target: str) -> Question:
    """Return the question. Raises NotFound for a verb or a target that there is not."""
    if verb not in _QUESTIONS:
        raise NotFound("verb", verb)
    return _QUESTIONS[verb](target)


def perform(actor: Actor, verb: str, target: str, values: Mapping[str, str]) -> Effect:
    """Do it. Raises NotFound, BadQuery for a value that is no number, and what ``workers.fleet.operations`` raises."""
    if verb not in _ACTS:
        raise NotFound("verb", verb)
    return _ACTS[verb](actor, target, values)


def restore(actor: Actor, slot_id: str) -> Effect:
    """Use a quarantined slot again, by its id. Raises what ``operations.restore`` does."""
    slot = _slot(slot_id)
    return operations.restore(actor, slot.node.name, slot.device_uuid)


def drain_node(actor: Actor, name: str) -> Effect:
    """Drain a node, never a replica whose id ends like that name. Raises what ``operations.drain`` does."""
    return operations.drain(actor, _node(name).name)


def _slot(identity: str) -> Slot:
    found = Slot.objects.filter(id=_id("slot", identity)).select_related("node").first()
    if found is None:
        raise NotFound("slot", identity)
    return found


def _scale(target: str) -> Question:
    row = _deployment(target)
    return Question(
        verb="scale",
        target=target,
        title=f"Scale {row.name}",
        effect="Scaling moves between the two with the load; the same number twice fixes it. Replicas that are too "
        "many finish their requests first.",
        button="Scale",
        command=f"{CONTROL} scale {row.name} {{minimum}}-{{maximum}}",
        fields=(
            Field(name="minimum", label="At least", value=str(row.min_replicas), maximum=MAX_REPLICAS),
            Field(name="maximum", label="At most", value=str(row.max_replicas), maximum=MAX_REPLICAS),
        ),
    )


def _target(target: str) -> Question:
    row = _deployment(target)
    return Question(
        verb="target",
        target=target,
        title=f"Load of {row.name}",
        effect="Scaling keeps so many replicas that each has about so many tokens in flight, prompt and answer, and "
        "acts when that has asked for more, or for less, for so long.",
        button="Set",
        command=f"{CONTROL} target {row.name} {{tokens}} {{up_after}} {{down_after}}",
        fields=(
            Field(
                name="tokens",
                label="Tokens a replica",
                value=str(row.target_tokens_per_replica),
                minimum=1,
                maximum=MOST_TOKENS,
            ),
            Field(name="up_after", label="Up after, s", value=f"{row.scale_up_delay_seconds:.0f}", maximum=A_DAY),
            Field(name="down_after", label="Down after, s", value=f"{row.scale_down_delay_seconds:.0f}", maximum=A_DAY),
        ),
    )


def _warm(target: str) -> Question:
    row = Pool.objects.filter(name=target).first()
    if row is None:
        raise NotFound("pool", target)
    most = operations.MAX_PLACEHOLDERS
    return Question(
        verb="warm",
        target=target,
        title=f"Keep {row.name} warm",
        effect="Each node of the pool keeps so many placeholders while it has slots for them. At h2 a process has the "
        "engine imported and becomes a replica; at h0 only the slot is held.",
        button="Keep warm",
        command=f"{CONTROL} warm {row.name} {{placeholders}} {{level}}",
        fields=(
            Field(name="placeholders", label="Placeholders a node", value=str(row.placeholders_per_node), maximum=most),
            Field(name="level", label="Level", value=row.placeholder_level, choices=operations.LEVELS),
        ),
    )


def _drain(target: str) -> Question:
    node = Node.objects.filter(name=target).first()
    if node is not None:
        effect = (
            "It gets nothing new, its placeholders are evicted, and each of its replicas stops once a replacement "
            "elsewhere serves, or at once where there is no room for one. Requests that run may end first."
        )
        title, shown = f"Drain node {node.name}", node.name
    else:
        row = Replica.objects.select_related("deployment").filter(id=_id("replica", target)).first()
        if row is None:
            raise NotFound("replica", target)
        effect = (
            "Another one is started. Once it serves, or at once where there is no room for one, this one takes no new "
            f"requests, ends those it has, within {row.deployment.drain_seconds} s, and stops."
        )
        shown = f"{row.deployment.name}/{lookup.short(row.id)}"
        title = f"Drain replica {shown}"
    return Question(
        verb="drain", target=target, title=title, effect=effect, button="Drain", command=f"{CONTROL} drain {shown}"
    )


def _cordon(target: str) -> Question:
    _node(target)
    return Question(
        verb="cordon",
        target=target,
        title=f"Cordon {target}",
        effect="Nothing new is placed on the node. What runs there goes on.",
        button="Cordon",
        command=f"{CONTROL} cordon {target}",
    )


def _uncordon(target: str) -> Question:
    _node(target)
    return Question(
        verb="uncordon",
        target=target,
        title=f"Uncordon {target}",
        effect="Replicas and placeholders may be placed on the node again.",
        button="Uncordon",
        command=f"{CONTROL} uncordon {target}",
    )


def _evict(target: str) -> Question:
    row = _placeholder(target)
    return Question(
        verb="evict",
        target=target,
        title=f"Evict placeholder {lookup.short(row.id)}",
        effect=f"Its slot on {row.node.name} is free at once and its process is killed. The pool makes a new one "
        "while it wants more than it has.",
        button="Evict",
        danger=True,
        command=f"{CONTROL} evict {lookup.short(row.id)}",
    )


def _promote(target: str) -> Question:
    row = _placeholder(target)
    links = DeploymentPool.objects.filter(
        pool=row.node.pool_id, deployment__archived_at=None, deployment__revision__engine=row.engine
    )
    names = tuple(links.order_by("deployment__name").values_list("deployment__name", flat=True))
    warmed_for = row.deployment.name if row.deployment else ""
    chosen = warmed_for if warmed_for in names else next(iter(names), "")
    return Question(
        verb="promote",
        target=target,
        title=f"Promote placeholder {lookup.short(row.id)}",
        effect=f"Its process on {row.node.name} becomes a replica now: one more than the deployment has, within its "
        "maximum. Scaling may give it up again.",
        button="Promote",
        command=f"{CONTROL} promote {lookup.short(row.id)} {{deployment}}",
        fields=(Field(name="deployment", label="Deployment", value=chosen, choices=names),),
    )


def _restore(target: str) -> Question:
    row = _slot(target)
    return Question(
        verb="restore",
        target=target,
        title=f"Restore slot {row.index} of {row.node.name}",
        effect=f"It was quarantined: {row.fault or 'no fault was noted'}. Replicas and placeholders may have it again.",
        button="Restore",
        command=f"{CONTROL} restore {row.node.name} {row.device_uuid}",
    )


_QUESTIONS: dict[str, Callable[[str], Question]] = {
    "scale": _scale,
    "target": _target,
    "warm": _warm,
    "drain": _drain,
    "cordon": _cordon,
    "uncordon": _uncordon,
    "evict": _evict,
    "promote": _promote,
    "restore": _restore,
}


_Act = Callable[[Actor, str, Mapping[str, str]], Effect]
_ACTS: dict[str, _Act] = {
    "scale": lambda actor, target, values: operations.scale(
        actor, target, _number(values, "minimum"), _number(values, "maximum")
    ),
    "target": lambda actor, target, values: operations.set_target(actor, target, _scaling_target(values)),
    "warm": lambda actor, target, values: operations.warm(
        actor, target, _number(values, "placeholders"), values.get("level")
    ),
    "drain": lambda actor, target, values: operations.drain(actor, target),
    "cordon": lambda actor, target, values: operations.cordon(actor, target),
    "uncordon": lambda actor, target, values: operations.uncordon(actor, target),
    "evict": lambda actor, target, values: operations.evict(actor, target),
    "promote": lambda actor, target, values: operations.promote(actor, target, values.get("deployment", "")),
    "restore": lambda actor, target, values: restore(actor, target),
}


def _scaling_target(values: Mapping[str, str]) -> ScalingTarget:
    return ScalingTarget(
        target_tokens_per_replica=_number(values, "tokens"),
        scale_up_delay_seconds=_number(values, "up_after"),
        scale_down_delay_seconds=_number(values, "down_after"),
    )


def _deployment(name: str) -> Deployment:
    found = Deployment.objects.filter(name=name, archived_at=None).first()
    if found is None:
        raise NotFound("deployment", name)
    return found


def _node(name: str) -> Node:
    found = Node.objects.filter(name=name).first()
    if found is None:
        raise NotFound("node", name)
    return found


def _placeholder(identity: str) -> Placeholder:
    rows = Placeholder.objects.select_related("node", "deployment")
    found = rows.filter(id=_id("placeholder", identity)).first()
    if found is None:
        raise NotFound("placeholder", identity)
    return found


def _id(kind: str, text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(kind, text) from None


def _number(values: Mapping[str, str], name: str) -> int:
    """Return a whole number. Raises BadQuery; what is too large for any of them is refused here, too."""
    text = values.get(name, "").strip()
    if not text.isascii() or not text.isdigit() or len(text) > 8:
        raise BadQuery(name, text, "a whole number")
    return int(text)
