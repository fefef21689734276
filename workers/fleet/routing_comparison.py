"""Compare two routing policies on a deployment's live traffic, each for a part of its conversations, for a while."""

from __future__ import annotations

import secrets
import time

import msgspec
from django.db import transaction

from catalogue import routing_policy
from catalogue.routing_policy import GROUPS, Comparison, Routing, RoutingPolicy
from tenants import audit
from tenants.audit import Actor
from workers.errors import BadCount, BadValue, NotFound, Refused
from workers.fleet import lookup
from workers.models import Deployment
from workers.scheduler import reconciler
from workers.serving import endpoints

MAX_MINUTES = 7 * 24 * 60.0
NAME_BYTES = 4


@transaction.atomic
def start(
    actor: Actor,
    deployment: str,
    policy: RoutingPolicy | None,
    against: RoutingPolicy,
    *,
    share: float,
    minutes: float,
) -> Comparison:
    """Begin a comparison, which ends by itself; ``policy`` None: the deployment's own.

    ``share`` of the conversations goes by ``against``. Raises NotFound, BadValue, BadCount, and Refused
    while another one runs or if both policies are equal.
    """
    reconciler.lock(wait=True)
    row = lookup.deployment(deployment)
    if not 1 / GROUPS <= share <= 1 - 1 / GROUPS:  # refuses NaN too
        raise BadValue("share of the conversations", f"{share:g}", f"{1 / GROUPS:g} to {1 - 1 / GROUPS:g}")
    if not 0 < minutes <= MAX_MINUTES:
        raise BadCount(minutes, f"more than 0, at most {MAX_MINUTES:g}", "minutes")
    model = row.revision.model
    others = Deployment.objects.filter(revision__model=model, archived_at=None).exclude(id=row.id)
    if other := others.first():
        why = f"its model {model.name} is served by {other.name} too, and gateways split the requests of a model"
        raise Refused("deployment", row.name, why, "archive the other one, or compare while only one serves the model")
    routing, now = routing_policy.read(row.routing), time.time()
    if routing.comparison is not None and routing.comparison.until > now:
        left = (routing.comparison.until - now) / 60
        why = f"a comparison of its routing policies runs for another {left:.1f} minutes"
        raise Refused("deployment", row.name, why, "wait for it, or end it with --stop")
    policy = policy or routing.policy
    if policy == against:
        why = f"both policies of the comparison are {policy}"
        raise Refused("deployment", row.name, why, "name another one with --against")
    comparison = Comparison(
        name=secrets.token_hex(NAME_BYTES),
        policy=policy,
        against=against,
        share=share,
        began=now,
        until=now + minutes * 60,
    )
    _store(row, msgspec.structs.replace(routing, comparison=comparison))
    after = {"policy": str(comparison.policy), "against": str(against), "share": share, "minutes": minutes}
    audit.record(actor, "deployment.routing_compared", ("deployment", row.id), after=after)
    return comparison


@transaction.atomic
def stop(actor: Actor, deployment: str) -> Comparison:
    """End the comparison now, if it runs, and return it. Raises NotFound."""
    reconciler.lock(wait=True)
    row, now = lookup.deployment(deployment), time.time()
    comparison = _of(row)
    if comparison.until > now:
        comparison = msgspec.structs.replace(comparison, until=now)
        _store(row, msgspec.structs.replace(routing_policy.read(row.routing), comparison=comparison))
        audit.record(actor, "deployment.comparison_ended", ("deployment", row.id), after={"by": "stop"})
    return comparison


@transaction.atomic
def last(deployment: str) -> tuple[str, Comparison]:
    """Return the name of the model and the last comparison, which may run. Raises NotFound."""
    row = lookup.deployment(deployment)
    return row.revision.model.name, _of(row)


def _of(row: Deployment) -> Comparison:
    comparison = routing_policy.read(row.routing).comparison
    if comparison is None:
        raise NotFound("comparison of routing policies of", row.name)
    return comparison


def _store(row: Deployment, routing: Routing) -> None:
    Deployment.objects.filter(id=row.id).update(routing=routing_policy.to_json(routing))
    endpoints.announce()
