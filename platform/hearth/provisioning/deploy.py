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
from catalogue import registry as catalogue
from catalogue.engine_options import DEFAULT as DEFAULT_OPTIONS
from catalogue.models import Model, ModelRevision
from catalogue.registry import Description
from hearth.instance.start_options import PoolOptions
from hearth.provisioning import cluster
from tenants import registry
from tenants.audit import Actor
from tenants.ids import PLATFORM_SLUG
from workers.fleet import deployments, engine_arguments, engine_versions, model_options, operations, rollouts
from workers.fleet.model_options import NO_CHANGE, OptionChange
from workers.model_sources import checks
from workers.model_sources.source import ModelSpec, deployment_name, is_tiny
from workers.models import Deployment, Pool
from workers.scheduler import reconciler
from workers.serving.pool_requirements import PoolRequirements
from workers.weights import hub_tokens, secrets
from workers.weights.folder import folder_digest

log = logging.getLogger(__name__)


def deploy(
    actor: Actor,
    spec: ModelSpec,
    replicas: int | None = None,
    *,
    requires: PoolRequirements | None = None,
    warn: Callable[[str], None] = log.warning,
) -> Deployment:
    """Deploy a model of the platform on this node's pool, or change its revision and its number of replicas.

    ``replicas`` None leaves them, and is 1 for a new model; ``requires`` None leaves what its pools must have. An
    archived model is restored. Idempotent. Name, source,
    size and the engine's arguments are checked before anything changes; ``warn`` gets a sentence if this machine cannot
    check the arguments. Raises BadName, ModelRefused, NotAllowed when a tenant has the name, OSError, BadArguments,
    Refused if no pool of it has what it requires, and the other errors of ``deployments``.
    """
    with transaction.atomic():
        pool = cluster.local_pool(settings.NODE_NAME, PoolOptions())
        name, given = spec.model_name(), spec.hub_token
        spec = checks.check(name, replace(spec, hub_token=given or checks.token_of(name, spec.secret)), pool)
        if spec.engine_version is None:
            spec = replace(spec, engine_version=_engine_version(name, spec, pool))
    if spec.engine_args or spec.options != DEFAULT_OPTIONS:
        _check_arguments(spec.described(weights_digest=""), warn)
    with transaction.atomic():
        made = _deploy(actor, replace(spec, hub_token=given), replicas, pool)
        return made if requires is None else _require(actor, made, requires)


def _require(actor: Actor, made: Deployment, requires: PoolRequirements) -> Deployment:
    operations.require(actor, made.name, requires)
    made.refresh_from_db(fields=["requires"])
    return made


def _engine_version(name: str, spec: ModelSpec, pool: Pool) -> str:
    """Return the version that a model has, of a new one or another engine the one that most nodes of the pool have."""
    found = served(name)
    if found is not None and found.revision.engine == spec.engine:
        return found.revision.engine_version
    return engine_versions.for_new_model(spec.engine, [pool])


def price_note(model_name: str) -> str:
    """Return a sentence for operators if the model has no price in the platform's book; empty if it has."""
    if prices.priced([model_name]):
        return ""
    return f"{model_name} has no price: its usage is unrated until you set one (page Prices, POST /api/v1/prices)"


@transaction.atomic
def _deploy(actor: Actor, spec: ModelSpec, replicas: int | None, pool: Pool) -> Deployment:
    name = spec.model_name()
    prices.exclude_batches()  # these two locks before any row of the model and before the policy epoch
    reconciler.lock(wait=True)
    present = Deployment.objects.filter(revision__model__name=name).order_by("name").first()
    slots_now = None if present is None else present.slots_per_replica
    platform = registry.find_tenant(PLATFORM_SLUG)
    revision = catalogue.record(actor, platform, spec.described(), slots_now=slots_now)
    if spec.secret is not None:
        secrets.use(actor, revision.model, spec.secret)
    if spec.hub_token is not None:
        hub_tokens.store(actor, revision.model, spec.hub_token)
    if spec.tenants is not None:
        administration.set_visibility(actor, name, Model.Visibility.PRIVATE, spec.tenants)
    if is_tiny(revision.source):
        prices.ensure_demo_prices(actor, name)
    administration.restore(actor, name)
    deployments.restore(actor, revision.model)
    found = Deployment.objects.filter(revision__model=revision.model).order_by("name").first()
    if found is None:
        return deployments.create(
            actor,
            name=deployment_name(name),
            revision=revision,
            pools=[pool],
            replicas=1 if replicas is None else replicas,
            slots_per_replica=spec.slots_per_replica,
        )
    made = deployments.redeploy(
        actor, found.name, revision=revision, pools=[pool], slots_per_replica=spec.slots_per_replica
    )
    return made if replicas is None else deployments.scale(actor, found.name, replicas)


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


def served(name: str) -> Deployment | None:
    """Return the deployment of the platform's model of this name, with what it will serve; None for a new one."""
    rows = Deployment.objects.select_related("revision__model").filter(revision__model__name=name)
    found = rows.order_by("name").first()
    return None if found is None else rollouts.as_wanted(found)


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
            _check_arguments(wanted, warn)
    with transaction.atomic():
        made = _change_options(actor, found, replicas, wanted, tenants)
        return made if requires is None else _require(actor, made, requires)


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


def _check_arguments(described: Description, warn: Callable[[str], None]) -> None:
    """Let the engine's own parser check what somebody chose; in no transaction, because vLLM's takes seconds."""
    if why := engine_arguments.check(described):
        warn(f"The engine's arguments are not checked on this machine: {why}. A replica that refuses them says so.")
