"""How far rollouts are, in numbers and in words: what ``celery fleet rollout status``, pages and API show."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from workers.engines.driver import named_version
from workers.fleet.lookup import short
from workers.models import Replica, Rollout
from workers.serving import rollout_traffic
from workers.serving.rollout_traffic import Traffic

#: How long one that has ended is still shown beside its deployment.
SHOWN_FOR = dt.timedelta(hours=1)
_State = Rollout.State
_VERBS: Mapping[str, str] = {
    _State.RUNNING: "rolling out",
    _State.PAUSED: "paused",
    _State.UNDOING: "undoing",
    _State.DONE: "rolled out",
    _State.UNDONE: "undone",
    _State.REPLACED: "replaced by another one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStatus:
    """One rollout. ``new`` and ``old`` count its replicas and the others that are wanted, ``…_ready`` those ready."""

    id: UUID
    deployment: str
    state: str
    revision_id: UUID
    #: The beginnings of the digests of both revisions.
    revision: str
    earlier_revision: str
    #: The versions of their engines, as nodes report them; empty: the first one that each node has.
    engine_version: str
    earlier_engine_version: str
    new: int
    new_ready: int
    old: int
    old_ready: int
    #: What the canary found, by the short id of each new replica.
    canaries: Mapping[str, str]
    traffic: Traffic
    reason: str
    waits_for: str
    started_by: str
    started_at: dt.datetime
    finished_at: dt.datetime | None

    @property
    def is_open(self) -> bool:
        """Return whether it has not ended."""
        return self.finished_at is None

    @property
    def words(self) -> str:
        """Return its state with what holds it up, or why it ended so."""
        if not self.is_open:
            return f"{_VERBS[self.state]}: {self.reason}"
        why = self.reason if self.state != _State.RUNNING else ""
        counts = f"{self.new_ready} of {self.new} new and {self.old_ready} of {self.old} old replicas are ready"
        canaries = (f"canary of {each}: {found}" for each, found in self.canaries.items() if found[:6] != "passed")
        return "; ".join(filter(None, (f"{_VERBS[self.state]}, {counts}", why, self.waits_for, *canaries)))


def newest(count: int) -> tuple[RolloutStatus, ...]:
    """Return the newest rollouts, newest first."""
    return statuses(rows().order_by("-id")[:count])


def by_deployment() -> dict[UUID, RolloutStatus]:
    """Return the open rollout of each deployment, or its last one if that has ended lately."""
    recent = rows().filter(Q(finished_at=None) | Q(finished_at__gt=Now() - SHOWN_FOR))
    last = list(recent.order_by("deployment_id", "-id").distinct("deployment_id"))
    return {row.deployment_id: status for row, status in zip(last, statuses(last), strict=True)}


def rows() -> QuerySet[Rollout]:
    """Return all rollouts, with what a status needs of other tables."""
    return Rollout.objects.select_related("deployment", "revision", "earlier_revision")


def statuses(found: Iterable[Rollout]) -> tuple[RolloutStatus, ...]:
    """Return the status of each."""
    found = list(found)
    open_in = {row.deployment_id for row in found if row.finished_at is None}
    replicas: dict[UUID, list[Replica]] = defaultdict(list)
    for replica in Replica.objects.filter(deployment__in=open_in, desired_state=Replica.Desired.RUNNING).order_by("id"):
        replicas[replica.deployment_id].append(replica)
    return tuple(_status(row, replicas[row.deployment_id] if row.finished_at is None else ()) for row in found)


def _status(row: Rollout, replicas: Sequence[Replica]) -> RolloutStatus:
    new = [each for each in replicas if each.rollout_id == row.id]
    old = [each for each in replicas if each.rollout_id != row.id]
    return RolloutStatus(
        id=row.id,
        deployment=row.deployment.name,
        state=row.state,
        revision_id=row.revision_id,
        revision=row.revision.digest[:12],
        earlier_revision=row.earlier_revision.digest[:12],
        engine_version=named_version(row.revision.engine, row.revision.engine_version),
        earlier_engine_version=named_version(row.earlier_revision.engine, row.earlier_revision.engine_version),
        new=len(new),
        new_ready=_ready(new),
        old=len(old),
        old_ready=_ready(old),
        canaries={short(each.id): f"{each.canary} {each.canary_note}".strip() for each in new},
        traffic=rollout_traffic.of_rollout(row.id) if row.finished_at is None else Traffic(),
        reason=row.reason,
        waits_for=row.waits_for,
        started_by=row.started_by,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def _ready(replicas: Sequence[Replica]) -> int:
    return sum(each.state == Replica.State.READY and each.canary in Replica.PROVEN for each in replicas)
