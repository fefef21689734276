"""Whether a model answers now, starts, or sleeps, and for how long; and the context that its engines have.

Gateways know it from their snapshot, pages read it here. A request finds a model in the same state.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from catalogue.registry import ServedModel
from tenants.ids import RevisionId
from workers.models import AdapterLoad, Deployment, Replica
from workers.serving import endpoints, startup_eta
from workers.serving.startup_eta import UNMEASURED_SECONDS, Deployed

_COMING = (Replica.State.REQUESTED, Replica.State.RESERVED, Replica.State.STARTING, Replica.State.WARMING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """``ready``: it answers. ``starting``: a replica comes. ``asleep``: a request wakes it. ``stopped``: none does.

    ``eta_seconds``: until the first token of one that starts, or is woken now; None: nobody has measured it, or no slot
    is free.
    """

    state: Literal["ready", "starting", "asleep", "stopped"]
    eta_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyReplica:
    """A replica that answers, as far as the state of a model needs it."""

    region: str
    #: None until its engine has said so.
    context_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """What is known of the starts to come. ``etas`` is by deployment; ``starting`` has when each start was decided.

    A deployment that shall have replicas, and none of which has its slots yet, is in ``starting`` with None.
    """

    deployments: Sequence[Deployed]
    etas: Mapping[UUID, float]
    starting: Mapping[UUID, dt.datetime | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNow:
    """The ready replicas by model name, the starts to come, and contexts that engines had before."""

    ready: Mapping[str, Sequence[ReadyReplica]]
    starts: Starts
    last_contexts: Mapping[RevisionId, int]

    def ready_in(self, model: ServedModel, regions: frozenset[str]) -> list[ReadyReplica]:
        """Return the ready replicas of a model in these regions; empty: in all."""
        return [each for each in self.ready.get(model.name, ()) if not regions or each.region in regions]


def state_of(
    model: ServedModel, *, is_ready: bool, starts: Starts, regions: frozenset[str], now: dt.datetime
) -> ModelState:
    """Return the state of a model for a tenant whose requests run in these ``regions``; empty: in all."""
    if is_ready:
        return ModelState(state="ready")
    found = startup_eta.startable(starts.deployments, model, regions)
    if found is None:
        return ModelState(state="stopped")
    # The time of starts that were never measured is a guess, good enough to let requests wait.
    eta = starts.etas.get(found.id)
    seconds = None if eta == UNMEASURED_SECONDS else eta
    if found.id not in starts.starting:
        return ModelState(state="asleep", eta_seconds=seconds)
    decided_at = starts.starting[found.id]
    if decided_at is None or seconds is None:
        return ModelState(state="starting")
    return ModelState(state="starting", eta_seconds=max(1.0, seconds - (now - decided_at).total_seconds()))


def context_of(model: ServedModel, ready: Iterable[int | None], last: Mapping[RevisionId, int]) -> int | None:
    """Return the shortest of the deployed context and those of its ``ready`` replicas, in tokens.

    ``last`` are contexts of replicas that ran before, for a model that has no ready one and no deployed context. None:
    no engine has ever said it.
    """
    known = [each for each in ready if each]
    if model.context_length_tokens:
        known.append(model.context_length_tokens)
    return min(known) if known else last.get(model.deployed_revision_id)


def starting() -> dict[UUID, dt.datetime | None]:
    """Return when the start of each deployment that shall have replicas was decided; see :class:`Starts`."""
    wanted = Deployment.objects.filter(archived_at=None, desired_replicas__gt=0).values_list("id", flat=True)
    coming = Replica.objects.filter(state__in=_COMING, desired_state=Replica.Desired.RUNNING)
    decided = coming.exclude(reserved_at=None).order_by("-reserved_at").values_list("deployment_id", "reserved_at")
    return dict.fromkeys(wanted) | dict(decided)


def read() -> FleetNow:
    """Read what pages need of all models."""
    ready: dict[str, list[ReadyReplica]] = defaultdict(list)
    answering = Replica.objects.filter(
        state=Replica.State.READY,
        desired_state=Replica.Desired.RUNNING,
        canary__in=Replica.PROVEN,
        deployment__archived_at=None,
    )
    for name, region, tokens in answering.values_list("revision__model__name", "node__pool__region", "context_tokens"):
        ready[name].append(ReadyReplica(region=region or "", context_tokens=tokens))
    loaded = AdapterLoad.objects.filter(
        state=AdapterLoad.State.LOADED, replica__in=answering, revision__superseded_at=None
    )
    columns = ("revision__model__name", "replica__node__pool__region", "replica__context_tokens")
    for name, region, tokens in loaded.values_list(*columns):
        ready[name].append(ReadyReplica(region=region or "", context_tokens=tokens))
    return FleetNow(
        ready=ready,
        starts=Starts(deployments=startup_eta.deployed(), etas=startup_eta.etas(), starting=starting()),
        last_contexts=endpoints.last_contexts(),
    )
