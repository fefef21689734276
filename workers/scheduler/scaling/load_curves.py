"""Measure what replicas compute at which load, and keep the targets that are learned from that.

One curve for each deployment, revision and pool. A window lasts some ticks of reconcile, and only while the same engine
processes serve: their own counters give the rate, the gateways' reports the load. The rules are in
``workers.scheduler.scaling.target_learning``.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

import msgspec
from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import Avg, Count, F, Max, Min, Q, Sum
from django.db.models.functions import Coalesce

from workers.models import Deployment, EngineBoot, LoadCurve, Replica
from workers.models.boots import OPEN
from workers.scheduler.scaling import scaling_signals, target_learning
from workers.scheduler.scaling.target_learning import Curve, Limits, Point
from workers.serving import learned_targets
from workers.serving.gateway_load import DeploymentLoad
from workers.serving.learned_targets import Targets

_READY = Q(
    state=Replica.State.READY, desired_state=Replica.Desired.RUNNING, canary__in=Replica.PROVEN, node__isnull=False
)
_WRITTEN = ("points", "window", "target_tokens", "reason", "moved_at", "measured_at")


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement that goes on; ``tokens`` and ``ttft_seconds`` are sums over its ticks, of one replica.

    ``counted`` is what the processes had counted together when it began, at ``began`` of the epoch; ``boots`` is the
    fingerprint of these.
    """

    began: float
    counted: int
    boots: str
    tokens: float = 0.0
    ticks: int = 0
    ttft_seconds: float = 0.0
    ttft_ticks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The ready replicas of a deployment in a pool at one tick; ``tokens`` in flight at each of them.

    ``counted``: the tokens of prompts and completions that their processes have computed, at ``at`` of the epoch.
    """

    replicas: int
    tokens: float
    counted: int
    at: float
    boots: str
    ttft_seconds: float | None = None
    cache_tokens: int | None = None


def renew(rows: Iterable[Deployment], loads: Mapping[UUID, DeploymentLoad], now: dt.datetime) -> None:
    """Measure the deployments that learn their targets, and move these where it is time to.

    Call it in every tick of reconcile, with the deployments whose replicas are all alike.
    """
    by_id = {row.id: row for row in rows if row.learns_target}
    curves = {(row.deployment_id, row.pool_id): row for row in _curves(by_id)}
    seen = _seen(by_id, loads)
    before = {key: curve.window for key, curve in curves.items()}
    present: Targets | None = None
    changed = []
    for key in sorted({*curves, *seen}):
        row = by_id[key[0]]
        curve = curves.get(key) or LoadCurve(deployment=row, revision_id=row.revision_id, pool_id=key[1])
        if _measure(curve, seen.get(key)):
            present = learned_targets.read(by_id.values()) if present is None else present
            _move(curve, present.get(key, row.target_tokens_per_replica), _limits(row, seen.get(key)), now)
        if curve.window != before.get(key):
            changed.append(curve)
    LoadCurve.objects.bulk_create(
        changed, update_conflicts=True, unique_fields=("deployment", "revision", "pool"), update_fields=_WRITTEN
    )


def points_of(curve: LoadCurve) -> Curve:
    """Return the points of a row."""
    return msgspec.convert(curve.points, Curve)


def advanced(window: Window | None, seen: Seen) -> tuple[Window | None, Point | None]:
    """Return the window after one tick, and the point that it measured if it is over.

    A window ends without a point once other processes serve, because their counters cannot be compared.
    """
    if window is None or window.boots != seen.boots or seen.counted < window.counted:
        return Window(began=seen.at, counted=seen.counted, boots=seen.boots), None
    late = seen.ttft_seconds
    window = msgspec.structs.replace(
        window,
        tokens=window.tokens + seen.tokens,
        ticks=window.ticks + 1,
        ttft_seconds=window.ttft_seconds + (late or 0.0),
        ttft_ticks=window.ttft_ticks + (late is not None),
    )
    seconds = seen.at - window.began
    if seconds < target_learning.WINDOW_SECONDS:
        return window, None
    after = Window(began=seen.at, counted=seen.counted, boots=seen.boots)
    tokens = window.tokens / window.ticks
    if tokens < 1:
        return after, None
    rate = (seen.counted - window.counted) / seconds / seen.replicas
    ttft = window.ttft_seconds / window.ttft_ticks if window.ttft_ticks else None
    return after, Point(tokens=tokens, rate=rate, ttft_seconds=ttft, at=seen.at)


def _measure(curve: LoadCurve, seen: Seen | None) -> bool:
    """Advance the window of a curve by one tick; return whether the curve has a new point."""
    if seen is None:
        curve.window = None
        return False
    window, point = advanced(None if curve.window is None else msgspec.convert(curve.window, Window), seen)
    curve.window = msgspec.to_builtins(window)
    if point is None:
        return False
    curve.points = msgspec.to_builtins(target_learning.with_window(points_of(curve), point))
    curve.measured_at = dt.datetime.fromtimestamp(point.at, dt.UTC)
    return True


def _move(curve: LoadCurve, present: int, limits: Limits, now: dt.datetime) -> None:
    """Note what the curve says, and move its target if it is time to."""
    lesson = target_learning.lesson(points_of(curve), present, limits)
    curve.reason = lesson.reason[:500]
    rests = curve.moved_at is not None and (now - curve.moved_at).total_seconds() < target_learning.PAUSE_SECONDS
    if lesson.tokens is not None and not rests:
        curve.target_tokens, curve.moved_at = target_learning.moved(present, lesson.tokens), now


def _limits(row: Deployment, seen: Seen | None) -> Limits:
    objectives = scaling_signals.read(row.objectives)
    return Limits(ttft_seconds=objectives.ttft_seconds, cache_tokens=seen.cache_tokens if seen else None)


def _curves(deployments: Collection[UUID]) -> list[LoadCurve]:
    """Return the curves of the revisions that the deployments serve."""
    return list(LoadCurve.objects.filter(deployment__in=deployments, revision=F("deployment__revision")))


def _seen(deployments: Collection[UUID], loads: Mapping[UUID, DeploymentLoad]) -> dict[tuple[UUID, UUID], Seen]:
    """Return what serves those of the deployments that have requests, by deployment and pool (two queries).

    Gateways report a deployment's tokens as a whole: each pool has them as its replicas have the requests.
    """
    busy = [each for each in deployments if each in loads and loads[each].in_flight_tokens]
    if not busy:
        return {}
    counted = _counted(busy)
    found = list(
        Replica.objects.filter(_READY, deployment__in=busy)
        .order_by()
        .values_list("deployment_id", "node__pool_id")
        .annotate(
            replicas=Count("id"),
            requests=Sum(F("running_requests") + F("waiting_requests")),
            ttft=Avg("ttft_seconds"),
            cache=Min("cache_tokens"),
        )
    )
    requests = Counter[UUID]()
    for deployment_id, _, _, here, *_ in found:
        requests[deployment_id] += here
    return {
        (deployment_id, pool_id): Seen(
            replicas=replicas,
            tokens=loads[deployment_id].in_flight_tokens * here / requests[deployment_id] / replicas,
            ttft_seconds=ttft,
            cache_tokens=cache,
            counted=of_pool.tokens,
            at=of_pool.at,
            boots=of_pool.boots,
        )
        for deployment_id, pool_id, replicas, here, ttft, cache in found
        if here and (of_pool := counted.get((deployment_id, pool_id))) is not None and of_pool.count == replicas
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """What the engine processes of some replicas have counted together; ``boots`` is a fingerprint of these."""

    tokens: int
    at: float
    boots: str
    count: int


def _counted(deployments: Collection[UUID]) -> dict[tuple[UUID, UUID], _Counted]:
    ready = Replica.objects.filter(_READY, deployment__in=deployments).values("id")
    boots = EngineBoot.objects.filter(OPEN, replica__in=ready).exclude(counted_at=None).order_by()
    computed = F("prompt_tokens") - Coalesce(F("cached_prompt_tokens"), 0) + F("completion_tokens")
    rows = boots.values_list("replica__deployment_id", "replica__node__pool_id").annotate(
        tokens=Sum(computed), at=Max("replica__observed_at"), ids=ArrayAgg("id", order_by="id")
    )
    return {
        (deployment_id, pool_id): _Counted(
            tokens=int(tokens),
            at=at.timestamp(),
            boots=hashlib.blake2b(b"".join(each.bytes for each in ids), digest_size=8).hexdigest(),
            count=len(ids),
        )
        for deployment_id, pool_id, tokens, at, ids in rows
    }
