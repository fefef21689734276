"""Where requests can go now: the ready replicas, and the notification that this set changed."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgspec
from django.contrib.postgres.aggregates import BoolAnd
from django.db import connection
from django.db.models import Exists, F, Min, OuterRef, Q

from catalogue import adapters, routing_policy
from catalogue.models import Model, ModelRevision
from catalogue.routing_policy import DEFAULT_ROUTING, Routing
from tenants.database.compiled_query import CompiledQuery
from tenants.ids import ReplicaId, RevisionId
from workers.engines.driver import base_url
from workers.engines.errors import NoAuthority, UnknownEngineKey
from workers.models import AdapterLoad, Replica, Weights
from workers.serving import engine_keys, engine_tls, rollout_policy

log = logging.getLogger(__name__)

CHANNEL = "hearth_fleet"
#: Replicas that may answer, including those of lost nodes; not those whose canary is to come, or failed. Gateways run
#: this query several times a second.
_ANSWERING = CompiledQuery(
    lambda: (
        Replica.objects.filter(
            state__in=(Replica.State.READY, Replica.State.LOST),
            desired_state=Replica.Desired.RUNNING,
            canary__in=Replica.PROVEN,
            deployment__archived_at=None,
            port__isnull=False,
        )
        .order_by("id")
        .values_list(
            "state",
            "id",
            "deployment__name",
            "revision__model__name",
            "revision_id",
            "host",
            "port",
            "generation",
            "engine_key",
            "cache_tokens",
            "leaving",
            "max_requests",
            "deployment__routing",
            "host_cache_tokens",
            "context_tokens",
            "revision__digest",
            "rollout_id",
            "rollout__finished_at",
            "deployment__rollout",
            "node__pool__region",
            "tls_generation",
            "node__name",
            "served_name",
        )
    )
)


#: Adapters that engines have. Gateways run this query as often.
_LOADED = CompiledQuery(
    lambda: (
        AdapterLoad.objects.filter(
            state=AdapterLoad.State.LOADED,
            generation=F("replica__generation"),
            replica__state__in=(Replica.State.READY, Replica.State.LOST),
            revision__superseded_at=None,
            revision__model__archived_at=None,
        )
        .order_by("replica_id", "revision__model__name")
        .values_list(
            "replica_id",
            "generation",
            "revision__model__name",
            "revision_id",
            "revision__digest",
            "engine_name",
        )
    )
)


#: Adapters that every ready replica of their base has tried to load in vain, AdapterLoad.ATTEMPTS times. Gateways run
#: this query as often.
_REFUSED = CompiledQuery(
    lambda: (
        AdapterLoad.objects.filter(
            unwanted_since=None,
            replica__state=Replica.State.READY,
            replica__desired_state=Replica.Desired.RUNNING,
            revision__superseded_at=None,
            revision__model__archived_at=None,
        )
        .values("revision__model__name")
        .annotate(
            refused=BoolAnd(
                Q(state=AdapterLoad.State.FAILED, attempts__gte=AdapterLoad.ATTEMPTS)
                | Q(state=AdapterLoad.State.WANTED)
                & Exists(
                    Weights.objects.filter(
                        node=OuterRef("replica__node"),
                        revision=OuterRef("revision"),
                        state=Weights.State.FAILED,
                        attempts__gte=AdapterLoad.ATTEMPTS,
                    )
                )
            ),
            retry_at=Min("next_attempt_at"),
        )
        .filter(refused=True)
        .order_by("revision__model__name")
        .values_list("revision__model__name", "retry_at")
    )
)


_REPLICAS_OF_BASE = Replica.objects.filter(
    revision__model=OuterRef("base"), desired_state=Replica.Desired.RUNNING, deployment__archived_at=None
).exclude(state__in=(Replica.State.STOPPED, Replica.State.FAILED))
#: Adapters whose base has a ready replica, and none whose engine was started with LoRA. Gateways run this as often.
_HOMELESS = CompiledQuery(
    lambda: (
        Model.objects.filter(
            Exists(_REPLICAS_OF_BASE.filter(state=Replica.State.READY)),
            ~Exists(_REPLICAS_OF_BASE.filter(revision__options__lora_adapters__gt=0)),
            base__isnull=False,
            archived_at=None,
        )
        .order_by("name")
        .values_list("name")
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What gateways watch of a replica while its rollout is open."""

    #: A stream whose first token takes longer is slow; None: none is.
    slow_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One engine that serves requests. A new ``generation`` is a new process, so its prefix cache is empty."""

    replica_id: ReplicaId
    deployment: str
    model_name: str
    revision_id: RevisionId
    #: What the cache keys of its responses contain.
    revision_digest: str
    base_url: str
    #: The name in its certificate; empty: it speaks plain HTTP.
    tls_name: str = ""
    api_key: str = field(repr=False)
    generation: int
    #: How many tokens its KV cache holds, None until the engine has said so.
    cache_tokens: int | None = None
    #: How many it keeps in host memory; None if the engine has not said, or keeps none.
    host_cache_tokens: int | None = None
    #: It serves only until another one is ready in its place.
    leaving: bool = False
    #: How many requests its engine runs at once, None until the engine has said so.
    max_requests: int | None = None
    #: How requests choose among the replicas of its deployment.
    routing: Routing = DEFAULT_ROUTING
    #: Its longest prompt and completion together, None until the engine has said so.
    context_tokens: int | None = None
    #: Set while the rollout that made it is open.
    watch: Watch | None = None
    #: That of its node's pool.
    region: str = ""
    #: What the engine calls the model, where that is not ``model_name``: an adapter's revision has a name of its own,
    #: and a model that has been renamed its old one until the replica is replaced.
    engine_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAdapter:
    """One revision of a LoRA adapter that the engine of a replica has."""

    replica_id: ReplicaId
    generation: int
    model_name: str
    revision_id: RevisionId
    digest: str
    engine_name: str

    def on(self, base: Endpoint) -> Endpoint:
        """Return where the adapter answers, given its base's endpoint."""
        return replace(
            base,
            model_name=self.model_name,
            revision_id=self.revision_id,
            revision_digest=adapters.digest_on(base.revision_digest, self.digest),
            engine_name=self.engine_name,
        )


def loaded_adapters() -> tuple[LoadedAdapter, ...]:
    """Return the active revisions of adapters that ready replicas have loaded, in order of replica and adapter."""
    return tuple(
        LoadedAdapter(
            replica_id=replica_id,
            generation=generation,
            model_name=model_name,
            revision_id=revision_id,
            digest=digest,
            engine_name=engine_name,
        )
        for replica_id, generation, model_name, revision_id, digest, engine_name in _LOADED.rows()
    )


def refused_adapters() -> dict[str, dt.datetime | None]:
    """Return the adapters that no ready replica could load, by name, with the time of the next attempt if it is known.

    While one replica has it, or has not failed AdapterLoad.ATTEMPTS times, an adapter is not among them; nor while its
    base has no replica.
    """
    return dict(_REFUSED.rows()) | dict.fromkeys((name for (name,) in _HOMELESS.rows()), None)


def of_adapters(bases: Iterable[Endpoint], loaded: Iterable[LoadedAdapter]) -> list[Endpoint]:
    """Return the endpoints of adapters in the engines of these endpoints."""
    known = {(each.replica_id, each.generation): each for each in bases}
    found = ((known.get((each.replica_id, each.generation)), each) for each in loaded)
    return [each.on(base) for base, each in found if base is not None]


def ready() -> tuple[Endpoint, ...]:
    """Return every replica that requests can go to, in order of id: those that are ready and wanted.

    A deployment without any offers those of a lost node instead: the agent may be silent while its engines are
    well, and the port of an engine that has ended refuses connections at once. A replica whose engine key this process
    does not have, or that speaks TLS where this process has no authority, is left out: its engine would refuse every
    request.
    """
    rows = [(row[0] == Replica.State.READY, _endpoint(row)) for row in _ANSWERING.rows()]
    known = [(is_ready, endpoint) for is_ready, endpoint in rows if endpoint is not None]
    served = {endpoint.deployment for is_ready, endpoint in known if is_ready}
    return tuple(endpoint for is_ready, endpoint in known if is_ready or endpoint.deployment not in served)


def last_contexts() -> dict[RevisionId, int]:
    """Return the context that the newest engine had, for each active revision whose context is the model's own.

    Engines of an earlier revision of the same source count, because another option makes another revision.
    """
    own = ModelRevision.objects.filter(context_length_tokens=0, superseded_at=None)
    active = {
        model_id: (revision_id, source) for revision_id, model_id, source in own.values_list("id", "model_id", "source")
    }
    rows = Replica.objects.filter(revision__model_id__in=active, context_tokens__gt=0)
    newest = rows.order_by("revision__model_id", "revision__source", "-id").distinct(
        "revision__model_id", "revision__source"
    )
    return {
        RevisionId(active[model_id][0]): tokens
        for model_id, source, tokens in newest.values_list("revision__model_id", "revision__source", "context_tokens")
        if source == active[model_id][1] and tokens is not None
    }


def announce() -> None:
    """Notify every gateway that the set changed. Call it inside the transaction of the change."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])


def _endpoint(row: tuple[Any, ...]) -> Endpoint | None:
    """Return the endpoint of a row of ``_ANSWERING``; None without the engine key that it names."""
    _, replica_id, deployment, model_name, revision_id, host, port, generation, engine_key, *told = row
    try:
        api_key = engine_keys.derive(replica_id, engine_key)
        tls_name = _tls_name(generation, *told[11:13])
    except (UnknownEngineKey, NoAuthority) as error:
        _report_left_out(replica_id, generation, str(error))
        return None
    return Endpoint(
        replica_id=replica_id,
        deployment=deployment,
        model_name=model_name,
        revision_id=revision_id,
        revision_digest=told[6],
        base_url=base_url(host, port, tls=bool(tls_name)),
        tls_name=tls_name,
        api_key=api_key,
        generation=generation,
        cache_tokens=told[0],
        leaving=told[1],
        max_requests=told[2],
        routing=routing_policy.from_json(told[3]),
        host_cache_tokens=told[4],
        context_tokens=told[5],
        watch=_watch(told[9]) if told[7] is not None and told[8] is None else None,
        region=told[10] or "",
        engine_name=told[13],
    )


def _tls_name(generation: int, tls_generation: int | None, node: str) -> str:
    """Return the name in the engine's certificate, empty without TLS. Raises NoAuthority."""
    return engine_tls.peer(node).server_name if tls_generation == generation else ""


@lru_cache(maxsize=1024)
def _watch(policy: str | None) -> Watch:
    """Return what the rollout policy of a deployment, as JSON, lets gateways watch."""
    try:
        return Watch(slow_seconds=rollout_policy.read(msgspec.json.decode(policy) if policy else None).max_ttft_seconds)
    except msgspec.ValidationError:  # of another version of Hearth; no poll may fail of it
        return Watch()


@lru_cache(maxsize=1024)
def _report_left_out(replica_id: ReplicaId, generation: int, problem: str) -> None:
    """Log, once for each engine, that it gets no requests from this process."""
    log.error(
        "replica %s, generation %s, gets no requests from here: %s. Import them from the first machine "
        "(`hearth secrets export - --all`, `hearth secrets import -`) and restart this process.",
        replica_id,
        generation,
        problem,
    )
