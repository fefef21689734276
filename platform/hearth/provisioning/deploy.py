"""Deploy a model beside the first one, or change what a deployed one serves. Django must be set up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from django.conf import settings
from django.db import transaction

from billing.pricing import prices
from catalogue import administration, engine_options
from catalogue.models import Model, ModelRevision
from catalogue.registry import Description
from hearth.instance.start_options import PoolOptions
from hearth.provisioning import cluster
from portal.fleet import deploying
from tenants.audit import Actor
from workers.errors import NotFound
from workers.fleet import deployments, engine_versions, model_options
from workers.fleet.model_options import NO_CHANGE, OptionChange
from workers.model_sources import checks
from workers.model_sources.source import ModelSpec
from workers.models import Deployment, Pool
from workers.scheduler import reconciler
from workers.serving.pool_requirements import PoolRequirements
from workers.weights.folder import folder_digest

log = logging.getLogger(__name__)


def deploy(
    actor: Actor,
    spec: ModelSpec,
    replicas: int | None = None,
    *,
    pool: str | None = None,
    requires: PoolRequirements | None = None,
    warn: Callable[[str], None] = log.warning,
) -> Deployment:
    """Deploy a model of the platform, or change it, as ``portal.fleet.deploying.deploy`` does.

    ``pool``: None for that of this node. Raises NotFound for a pool that is not there.
    """
    return deploying.deploy(actor, spec, _pool(pool), replicas, requires=requires, warn=warn)


def _pool(name: str | None) -> Pool:
    if name is None:
        with transaction.atomic():
            return cluster.local_pool(settings.NODE_NAME, PoolOptions())
    found = Pool.objects.filter(name=name).first()
    if found is None:
        raise NotFound("pool", name, tuple(Pool.objects.order_by("name").values_list("name", flat=True)[:20]))
    return found


def price_note(model_name: str) -> str:
    """Return a sentence for operators if the model has no price in the platform's book; empty if it has."""
    if prices.priced([model_name]):
        return ""
    return f"{model_name} has no price: its usage is unrated until you set one (page Prices, POST /api/v1/prices)"


def with_options(spec: ModelSpec, found: Deployment | None, change: OptionChange) -> ModelSpec:
    """Return a model with these options; those that are not given are as the deployment has them, else the defaults."""
    present = spec
    if found is not None:
        present = replace(
            spec,
            slots_per_replica=found.slots_per_replica,
            context_tokens=found.revision.context_length_tokens,
            options=engine_options.from_json(found.revision.options),
        )
        if found.revision.engine == spec.engine:
            present = replace(present, engine_version=found.revision.engine_version)
    if change.engine_version is not None:
        present = replace(present, engine_version=engine_versions.resolve(spec.engine, change.engine_version))
    slots, context = change.slots_per_replica, change.context_tokens
    return replace(
        present,
        slots_per_replica=present.slots_per_replica if slots is None else slots,
        context_tokens=present.context_tokens if context is None else context,
        options=change.of_engine(present.options),
    )


def change_options(
    actor: Actor,
    found: Deployment,
    *,
    replicas: int | None = None,
    change: OptionChange = NO_CHANGE,
    tenants: Sequence[str] | None = None,
    requires: PoolRequirements | None = None,
    warn: Callable[[str], None] = log.warning,
) -> Deployment:
    """Change how many replicas a model has, their options and pools, and who sees it; None leaves each.

    What it serves stays. An archived model is restored. ``warn``: as in :func:`deploy`. Raises ModelRefused, BadName,
    Refused if no pool of it has what it requires, and the errors of ``model_options`` and of ``deployments``.
    """
    pools = model_options.pools_of(found)
    wanted = None
    if change:
        wanted = model_options.changed(found, change, weights_digest=_weights_digest(found.revision))
        if change.slots_per_replica is not None and pools:
            checks.check_gang(wanted.slots_per_replica, pools[0])
        wanted = checks.check_options(found, wanted, change)
        if change.is_of_engine:
            deploying.check_arguments(wanted, warn)
    with transaction.atomic():
        made = _change_options(actor, found, replicas, wanted, tenants)
        return made if requires is None else deploying.require(actor, made, requires)


@transaction.atomic
def _change_options(
    actor: Actor, found: Deployment, replicas: int | None, wanted: Description | None, tenants: Sequence[str] | None
) -> Deployment:
    prices.exclude_batches()
    reconciler.lock(wait=True)
    model = found.revision.model
    if tenants is not None:
        administration.set_visibility(actor, model.name, Model.Visibility.PRIVATE, tenants)
    administration.restore(actor, model.name)
    deployments.restore(actor, model)
    made = found if wanted is None else model_options.apply(actor, found, wanted)
    return made if replicas is None else deployments.scale(actor, found.name, replicas)


def _weights_digest(revision: ModelRevision) -> str:
    """Return the digest of a revision's folder on this machine, if the revision does not store it."""
    return revision.weights_digest or folder_digest(Path(revision.source))
