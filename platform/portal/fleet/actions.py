"""What an operator can do to the fleet from its page: the dialog before each verb, and running it.

Names and texts of the verbs are ``workers.fleet.verbs``.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar
from urllib.parse import urlencode

from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from catalogue import routing_policy
from tenants.audit import Actor
from workers.errors import BadCount, NotFound, WorkerError
from workers.fleet import lookup, operations, pools
from workers.fleet.deployments import MAX_REPLICAS
from workers.fleet.operations import Effect
from workers.fleet.status import rollout_status
from workers.fleet.verbs import LEARNED, VERBS, Verb
from workers.models import Deployment, DeploymentPool, Node, Placeholder, Pool, Replica, Slot
from workers.scheduler.scaling import scaling_signals
from workers.serving import pool_requirements, promotion, rollout_policy

COMMAND = "celery -A hearth control"

#: The field that a number out of range stood in, by the verb and what was counted.
_COUNTED = {
    ("scale", "replicas"): "minimum",
    ("scale", "replicas at most"): "maximum",
    ("target", "tokens per replica"): "tokens",
    ("warm", "placeholders"): "per_node",
}
#: Verbs that set what their fields show, so that the earlier values undo them.
_SETTING = frozenset(("scale", "target", "route", "objective", "require", "warm", "pool_set", "rollout_policy"))

#: Values that a shell reads as they are; spaces part the words of a list. dialogs.js has the same.
_PLAIN = re.compile(r"[\w .:,=/@%+-]*", re.ASCII)

#: Characters of a query that every browser and proxy passes on.
_LONGEST_QUERY = 2000

#: What is said of an engine without a version of its own.
_OF_NODE = "engine of each node"

_Row = TypeVar("_Row", bound=Model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One input of a dialog: one of ``choices``, a text such as ``suggestions``, or a whole number between bounds.

    ``free``: any text, also none.
    """

    name: str
    label: str
    value: str
    choices: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
    free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a verb is applied to. The other arguments of the verb are fields of the same names."""

    #: As titles name it, such as ``node n1``.
    title: str
    #: The verb's arguments that name it.
    arguments: Mapping[str, str]
    #: Arguments that the command shows otherwise: shorter, or as a pattern of fields in braces.
    shown: Mapping[str, str] = field(default_factory=dict)
    fields: tuple[Field, ...] = ()
    #: What to know about it first.
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionDialog:
    """What is shown before a verb runs. ``target`` is a name or an id, as in the page's address."""

    verb: Verb
    target: str
    subject: Subject
    #: The name of the field whose value was refused.
    refused: str = ""

    @property
    def title(self) -> str:
        """Return the verb with its subject."""
        return f"{self.button} {self.subject.title}"

    @property
    def button(self) -> str:
        """Return the verb as the button shows it."""
        return gettext(self.verb.words.split()[-1].capitalize())

    @property
    def command(self) -> str:
        """Return the same as a command, with the fields' names in braces."""
        return " ".join((COMMAND, self.verb.name, *map(self._pattern, self.verb.arguments)))

    @property
    def shown_command(self) -> str:
        """Return the command with the values that the fields begin with, safe to paste: a link may have set them."""
        return self.command.format(**{name: _quoted(value) for name, value in self.values.items()})

    def filled(self, values: Mapping[str, str]) -> ActionDialog:
        """Return the dialog with these values in its fields."""
        fields = tuple(replace(each, value=values.get(each.name, each.value)) for each in self.subject.fields)
        return replace(self, subject=replace(self.subject, fields=fields))

    @property
    def values(self) -> dict[str, str]:
        """The fields' values by name."""
        return {each.name: each.value for each in self.subject.fields}

    def refusing(self, error: WorkerError) -> ActionDialog:
        """Return the dialog with the field marked that an error is about."""
        what = error.what if isinstance(error, BadCount) else ""
        return replace(self, refused=_COUNTED.get((self.verb.name, what), ""))

    @property
    def undo(self) -> str:
        """The query of this dialog with the values that it has now; empty if they would not undo the verb."""
        query = urlencode(self.values)
        return query if self.verb.name in _SETTING and len(query) <= _LONGEST_QUERY else ""

    def run(self, actor: Actor, values: Mapping[str, str]) -> Effect:
        """Run the verb with the values of the fields by name. Raises WorkerError."""
        known = defaultdict(str, values)
        given = {
            name: self.subject.arguments.get(name) or self._pattern(name).format_map(known) or None
            for name in self.verb.arguments
        }
        return self.verb.execute(actor, given)

    def _pattern(self, argument: str) -> str:
        shown = self.subject.shown.get(argument)
        return shown or self.subject.arguments.get(argument) or f"{{{argument}}}"


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else shlex.quote(value)


def dialog(verb: str, target: str) -> ActionDialog:
    """Return the dialog of a verb. Raises NotFound for an unknown verb or target."""
    if verb not in _SUBJECTS:
        raise NotFound("verb", verb)
    return ActionDialog(verb=VERBS[verb], target=target, subject=_SUBJECTS[verb](target))


def _scale(target: str) -> Subject:
    row = _deployment(target)
    return Subject(
        title=row.name,
        arguments={"deployment": row.name},
        shown={"replicas": "{minimum}-{maximum}"},
        fields=(
            Field(name="minimum", label=_("At least"), value=str(row.min_replicas), maximum=MAX_REPLICAS),
            Field(name="maximum", label=_("At most"), value=str(row.max_replicas), maximum=MAX_REPLICAS),
        ),
    )


def _target(target: str) -> Subject:
    row = _deployment(target)
    longest = operations.MAX_DELAY_SECONDS
    tokens = operations.target_of(row).target_tokens_per_replica or LEARNED
    up_after, down_after = f"{row.scale_up_delay_seconds:.0f}", f"{row.scale_down_delay_seconds:.0f}"
    return Subject(
        title=gettext("load of %(name)s") % {"name": row.name},
        arguments={"deployment": row.name},
        fields=(
            Field(
                name="tokens",
                label=_("Tokens per replica, or auto"),
                value=str(tokens),
                suggestions=(LEARNED,),
            ),
            Field(name="up_after", label=_("Up after, s"), value=up_after, maximum=longest),
            Field(name="down_after", label=_("Down after, s"), value=down_after, maximum=longest),
        ),
    )


def _route(target: str) -> Subject:
    row = _deployment(target)
    present = str(routing_policy.read(row.routing).policy)
    return Subject(
        title=gettext("requests of %(name)s") % {"name": row.name},
        arguments={"deployment": row.name},
        fields=(Field(name="policy", label=_("Policy"), value=present, suggestions=routing_policy.POLICIES),),
    )


def _warm(target: str) -> Subject:
    row = _find(Pool.objects.all(), "pool", name=target)
    most = operations.MAX_PLACEHOLDERS
    return Subject(
        title=gettext("pool %(name)s") % {"name": row.name},
        arguments={"pool": row.name},
        fields=(
            Field(
                name="per_node", label=_("Placeholders per node"), value=str(row.placeholders_per_node), maximum=most
            ),
            Field(name="level", label=_("Level"), value=row.placeholder_level, choices=operations.LEVELS),
        ),
    )


def _pool_set(target: str) -> Subject:
    row = _find(Pool.objects.all(), "pool", name=target)
    settings = pools.settings_of(row)
    given = dict(word.partition("=")[::2] for word in pools.setting_text(settings).split())
    names = {
        "priority": _("Order (lowest first)"),
        "region": _("Region"),
        "high_water": _("High water"),
        "low_water": _("Low water"),
        "staged_share": _("Share of memory for staged files"),
        "gpu_type": _("GPU type"),
        "labels": _("Labels, as net:ib,tier:spot"),
        "slot_hour_usd": _("Dollars per slot hour"),
    }
    return Subject(
        title=gettext("pool %(name)s") % {"name": row.name},
        arguments={"pool": row.name},
        shown={"settings": " ".join(f"{name}={{{name}}}" for name in names)},
        fields=tuple(Field(name=name, label=label, value=given[name], free=True) for name, label in names.items()),
    )


def _objective(target: str) -> Subject:
    row = _deployment(target)
    return Subject(
        title=gettext("of %(name)s") % {"name": row.name},
        arguments={"deployment": row.name},
        fields=(
            Field(
                name="objectives",
                label=_("As ttft_seconds=1.5 kv_usage=0.9"),
                value=str(scaling_signals.read(row.objectives)),
                free=True,
            ),
        ),
    )


def _require(target: str) -> Subject:
    row = _deployment(target)
    return Subject(
        title=gettext("pools of %(name)s") % {"name": row.name},
        arguments={"deployment": row.name},
        fields=(
            Field(
                name="requirements",
                label=_("As gpu_types=H100,H200 labels=net:ib"),
                value=str(pool_requirements.read(row.requires)),
                free=True,
            ),
        ),
    )


def _drain(target: str) -> Subject:
    if Node.objects.filter(name=target, removed_at=None).exists():
        return Subject(title=gettext("node %(target)s") % {"target": target}, arguments={"target": target})
    row = _find(Replica.objects.select_related("deployment"), "replica", id=target)
    name = f"{row.deployment.name}/{lookup.short(row.id)}"
    return Subject(
        title=gettext("replica %(name)s") % {"name": name}, arguments={"target": target}, shown={"target": name}
    )


def _node(target: str) -> Subject:
    row = _find(Node.objects.filter(removed_at=None), "node", name=target)
    return Subject(title=gettext("node %(name)s") % {"name": row.name}, arguments={"node": row.name})


def _evict(target: str) -> Subject:
    row = _find(Placeholder.objects.all(), "placeholder", id=target)
    short = lookup.short(row.id)
    return Subject(
        title=gettext("placeholder %(short)s") % {"short": short},
        arguments={"placeholder": target},
        shown={"placeholder": short},
    )


def _promote(target: str) -> Subject:
    row = _find(Placeholder.objects.select_related("node__pool", "deployment__revision"), "placeholder", id=target)
    short = lookup.short(row.id)
    links = DeploymentPool.objects.filter(pool=row.node.pool_id, deployment__archived_at=None)
    served = [link.deployment for link in links.select_related("deployment__revision").order_by("deployment__name")]
    names = tuple(each.name for each in served if promotion.can_become(row, each))
    warmed_for = row.deployment.name if row.deployment else ""
    chosen = warmed_for if warmed_for in names else next(iter(names), "")
    return Subject(
        title=gettext("placeholder %(short)s") % {"short": short},
        arguments={"placeholder": target},
        shown={"placeholder": short},
        fields=(Field(name="deployment", label=_("Deployment"), value=chosen, choices=names),),
    )


def _restore(target: str) -> Subject:
    row = _find(Slot.objects.select_related("node"), "slot", id=target)
    return Subject(
        title=gettext("slot %(index)s of %(name)s") % {"index": row.index, "name": row.node.name},
        arguments={"node": row.node.name, "device": row.device_uuid},
        note=gettext("Its fault: %(fault)s.") % {"fault": row.fault} if row.fault else "",
    )


def _rollout(target: str) -> Subject:
    row = _deployment(target)
    status = rollout_status.by_deployment().get(row.id)
    note = gettext("It is %(words)s.") % {"words": status.words} if status is not None else ""
    return Subject(
        title=gettext("rollout of %(name)s") % {"name": row.name}, arguments={"deployment": row.name}, note=note
    )


def _rollout_undo(target: str) -> Subject:
    """Return the rollout with what undoing it changes: the revision, or the engine's version."""
    subject, status = _rollout(target), rollout_status.by_deployment().get(_deployment(target).id)
    if status is None:
        return subject
    pairs = ((status.revision, status.earlier_revision), (status.engine_version, status.earlier_engine_version))
    changed = ", ".join(f"{now or _OF_NODE} → {then or _OF_NODE}" for now, then in pairs if now != then)
    going_back = gettext("It goes back: %(changed)s.") % {"changed": changed}
    return replace(subject, note=f"{subject.note} {going_back}") if changed else subject


def _rollout_policy(target: str) -> Subject:
    row = _deployment(target)
    policy = rollout_policy.read(row.rollout)
    given = dict(word.partition("=")[::2] for word in rollout_policy.words(policy).split())
    given["canaries"] = rollout_policy.canaries_json(policy)
    labels = {
        "max_surge": _("Replicas beyond the desired number"),
        "max_unavailable": _("Replicas that may be missing"),
        "min_ready_seconds": _("Seconds a new replica serves before an old one stops"),
        "max_ttft_seconds": _("Longest time to the first token, s; nothing: any"),
        "max_tpot_seconds": _("Longest time per further token of a canary, s; nothing: any"),
        "max_error_share": _("Share of requests that may fail"),
        "max_failed_starts": _("Starts that may fail"),
        "canaries": _("Canaries, as a JSON list; nothing: none"),
    }
    return Subject(
        title=gettext("rollouts of %(name)s") % {"name": row.name},
        arguments={"deployment": row.name},
        shown={"settings": " ".join(f"{name}={{{name}}}" for name in labels)},
        fields=tuple(Field(name=name, label=label, value=given[name], free=True) for name, label in labels.items()),
    )


_SUBJECTS: dict[str, Callable[[str], Subject]] = {
    "scale": _scale,
    "target": _target,
    "route": _route,
    "objective": _objective,
    "require": _require,
    "warm": _warm,
    "pool_set": _pool_set,
    "drain": _drain,
    "cordon": _node,
    "uncordon": _node,
    "evict": _evict,
    "promote": _promote,
    "restore": _restore,
    "rollout_pause": _rollout,
    "rollout_resume": _rollout,
    "rollout_undo": _rollout_undo,
    "rollout_restart": _rollout,
    "rollout_policy": _rollout_policy,
}


def _deployment(name: str) -> Deployment:
    return _find(Deployment.objects.filter(archived_at=None), "deployment", name=name)


def _find(rows: QuerySet[_Row], kind: str, **column: str) -> _Row:
    """Return the row with that name or id. Raises NotFound."""
    try:
        found = rows.filter(**column).first()
    except ValidationError:  # not an id
        found = None
    if found is None:
        raise NotFound(kind, "".join(column.values()))
    return found
