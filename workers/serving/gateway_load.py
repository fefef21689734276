"""What the gateways have in flight, as they report it: the demand that scaling decides from; and where they route to.

Each process has one row per deployment and repeats it while it lives, so a silent process counts as no load. Ages are
measured by the database's clock alone.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from django.conf import settings
from django.contrib.postgres.aggregates import JSONBAgg
from django.db.models import Max, Q, Sum
from django.db.models.functions import Now

from workers.models import Deployment, GatewayLoad
from workers.serving import rollout_traffic

#: How often a process repeats an unchanged load, and the age up to which a row counts.
KEEP_ALIVE_SECONDS = 3.0
LASTS = dt.timedelta(seconds=10)
#: The rows of a process that has been silent for this long are removed, because the process has ended.
FORGOTTEN_AFTER = dt.timedelta(minutes=10)
NO_REPLICAS: Mapping[UUID, Collection[UUID]] = MappingProxyType({})
_LOAD = ("in_flight_requests", "in_flight_tokens", "queued_requests", "queued_tokens")
_WRITTEN = (*_LOAD, "regional_tokens", "replicas", "engine_key", "authority", "reported_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentLoad:
    """Requests and their tokens, prompt and completion: at engines, and waiting in the queue for a replica."""

    in_flight_requests: int = 0
    in_flight_tokens: int = 0
    queued_requests: int = 0
    queued_tokens: int = 0
    #: Those of the tokens, in flight and queued, that belong to requests which may run only in some regions: by the
    #: names of these, as :func:`join_regions` writes them.
    regional_tokens: Mapping[str, int] = field(default_factory=dict)


def join_regions(names: Collection[str]) -> str:
    """Return a set of regions as one text: sorted, with commas, which no name contains."""
    return ",".join(sorted(names))


def split_regions(text: str) -> frozenset[str]:
    """Return the regions of a text of :func:`join_regions`."""
    return frozenset(text.split(","))


def report(
    process: str,
    loads: Mapping[UUID, DeploymentLoad],
    busy: Collection[UUID] = (),
    replicas: Mapping[UUID, Collection[UUID]] = NO_REPLICAS,
) -> None:
    """Store the load of one process, by deployment; a deployment that is not named keeps its row.

    Deployments in ``busy`` had a request since the last report, even if they have none now. ``replicas``: those that
    the process sends requests to, of each deployment with a rollout. At most two statements besides the check that each
    deployment still exists.
    """
    newest_engine_key = next(iter(settings.SECRETS.engine_keys))
    newest_authority = next((each.fingerprint for each in settings.SECRETS.authorities), "")
    known = set(Deployment.objects.filter(id__in=loads).values_list("id", flat=True))
    idle = {each for each in known if each not in busy and loads[each] == DeploymentLoad()}
    for ids, written in ((known - idle, (*_WRITTEN, "busy_at")), (idle, _WRITTEN)):
        GatewayLoad.objects.bulk_create(
            [
                GatewayLoad(
                    process=process,
                    deployment_id=deployment_id,
                    in_flight_requests=loads[deployment_id].in_flight_requests,
                    in_flight_tokens=loads[deployment_id].in_flight_tokens,
                    queued_requests=loads[deployment_id].queued_requests,
                    queued_tokens=loads[deployment_id].queued_tokens,
                    regional_tokens=dict(loads[deployment_id].regional_tokens),
                    replicas=sorted(replicas.get(deployment_id, ())),
                    engine_key=newest_engine_key,
                    authority=newest_authority,
                    reported_at=Now(),
                    busy_at=Now() if "busy_at" in written else None,
                )
                for deployment_id in sorted(ids)
            ],
            update_conflicts=True,
            unique_fields=("process", "deployment"),
            update_fields=written,
        )


def demand() -> dict[UUID, DeploymentLoad]:
    """Return the sum over all live processes, by deployment; a deployment that none reports is absent."""
    fresh = GatewayLoad.objects.filter(reported_at__gt=Now() - LASTS).order_by()
    sums = fresh.values("deployment").annotate(
        requests=Sum("in_flight_requests"),
        tokens=Sum("in_flight_tokens"),
        waiting=Sum("queued_requests"),
        waiting_tokens=Sum("queued_tokens"),
        regional=JSONBAgg("regional_tokens", filter=~Q(regional_tokens={}), default=[]),
    )
    return {
        row["deployment"]: DeploymentLoad(
            in_flight_requests=row["requests"],
            in_flight_tokens=row["tokens"],
            queued_requests=row["waiting"],
            queued_tokens=row["waiting_tokens"],
            regional_tokens=dict(sum((Counter(tokens) for tokens in row["regional"]), Counter[str]())),
        )
        for row in sums
    }


def gateways() -> tuple[str, ...]:
    """Return the sorted names of the live processes, including idle ones, which repeat their rows too."""
    fresh = GatewayLoad.objects.filter(reported_at__gt=Now() - LASTS)
    return tuple(fresh.order_by("process").values_list("process", flat=True).distinct())


def routed_by_all(replica_ids: Collection[UUID]) -> set[UUID]:
    """Return those of the replicas that every live process sends requests to; all of them if no process lives.

    A process that has not reported a replica does not send requests to it: one of a version without rollouts never
    does. One statement.
    """
    live = GatewayLoad.objects.filter(reported_at__gt=Now() - LASTS).order_by()
    routed: dict[str, set[UUID]] = {}
    for process, replicas in live.values_list("process", "replicas").distinct():
        routed.setdefault(process, set()).update(replicas)
    return set(replica_ids).intersection(*routed.values())


def not_routing(replica_ids: Collection[UUID]) -> list[str]:
    """Return the names of the live processes that do not send requests to all of these replicas."""
    live = GatewayLoad.objects.filter(reported_at__gt=Now() - LASTS).order_by("process")
    routed: dict[str, set[UUID]] = {}
    for process, replicas in live.values_list("process", "replicas"):
        routed.setdefault(process, set()).update(replicas)
    return [process for process, replicas in routed.items() if not replicas.issuperset(replica_ids)]


def engine_key_of_all() -> str:
    """Return the fingerprint of the newest engine key that this process and every live gateway have.

    A gateway has the key that it reports and all earlier ones. One that was not restarted since the rotation could not
    use an engine with the newest key. A row of a version with one key names none.
    """
    names: list[str] = list(settings.SECRETS.engine_keys)
    places = {name: place for place, name in enumerate(names)} | {"": len(names) - 1}
    live = GatewayLoad.objects.filter(reported_at__gt=Now() - LASTS)
    reported = set(live.values_list("engine_key", flat=True))
    return names[max((places.get(name, 0) for name in reported), default=0)]


def authorities_of_gateways() -> frozenset[str]:
    """Return the fingerprints of the newest authorities of the live gateways; an empty one: it has none."""
    live = GatewayLoad.objects.filter(reported_at__gt=Now() - LASTS).order_by()
    return frozenset(live.values_list("authority", flat=True).distinct())


def without_tls() -> str | None:
    """Return the name of a live gateway that cannot reach engines over TLS; None if there is none."""
    live = GatewayLoad.objects.filter(reported_at__gt=Now() - LASTS, authority="").order_by("process")
    return live.values_list("process", flat=True).first()


def busy_at() -> dict[UUID, dt.datetime]:
    """Return when each deployment last had a request, at any process whose rows are not removed yet."""
    rows = GatewayLoad.objects.exclude(busy_at=None).order_by().values("deployment").annotate(last=Max("busy_at"))
    return {row["deployment"]: row["last"] for row in rows}


def forget_silent() -> int:
    """Remove the rows of processes that have ended, and return how many. They already count as no load.

    What gateways counted for rollouts is removed too, once those are finished.
    """
    rollout_traffic.forget_finished()
    removed, _ = GatewayLoad.objects.filter(reported_at__lt=Now() - FORGOTTEN_AFTER).delete()
    return removed
