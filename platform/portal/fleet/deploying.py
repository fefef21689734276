"""Deploy a model of the platform: the command, the API and the page call :func:`deploy`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from django.db import transaction

from billing.pricing import prices
from billing.pricing.rating import Rates
from catalogue import administration
from catalogue import registry as catalogue
from catalogue.engine_options import DEFAULT as DEFAULT_OPTIONS
from catalogue.models import Model
from catalogue.registry import Description
from tenants import registry
from tenants.audit import Actor
from tenants.ids import PLATFORM_SLUG
from workers.fleet import deployments, engine_arguments, engine_versions, operations, rollouts
from workers.model_sources import checks
from workers.model_sources.source import ModelSpec, deployment_name, is_tiny
from workers.models import Deployment, Pool
from workers.scheduler import reconciler
from workers.serving.pool_requirements import PoolRequirements
from workers.weights import hub_tokens, secrets

log = logging.getLogger(__name__)


def checked(spec: ModelSpec, pool: Pool) -> ModelSpec:
    """Return the model with its commit and its engine's version; name, source and size fit the pool.

    Raises BadName, ModelRefused, and the errors of ``engine_versions``.
    """
    name = spec.model_name()
    spec = checks.check(name, replace(spec, hub_token=spec.hub_token or checks.token_of(name, spec.secret)), pool)
    if spec.engine_version is None:
        spec = replace(spec, engine_version=_engine_version(name, spec, pool))
    return spec


def deploy(
    actor: Actor,
    spec: ModelSpec,
    pool: Pool,
    replicas: int | None = None,
    *,
    requires: PoolRequirements | None = None,
    price: Rates | None = None,
    warn: Callable[[str], None] = log.warning,
) -> Deployment:
    """Deploy a model of the platform on a pool, or change its revision and its number of replicas.

    ``replicas`` None leaves them, and is 1 for a new model; ``requires`` None leaves what its pools must have.
    ``price`` is set in the platform's book. An archived model is restored. Idempotent. Name, source, size and the
    engine's arguments are checked before anything changes; ``warn`` gets a sentence if this machine cannot check them.
    Raises BadName, ModelRefused, NotAllowed when a tenant has the name, OSError, BadArguments, Refused if no pool of it
    has what it requires, the errors of ``prices.set_price``, and the other errors of ``deployments``.
    """
    given = spec.hub_token
    with transaction.atomic():
        spec = checked(spec, pool)
    if spec.engine_args or spec.options != DEFAULT_OPTIONS:
        check_arguments(spec.described(weights_digest=""), warn)
    with transaction.atomic():
        made = _deploy(actor, replace(spec, hub_token=given), replicas, pool)
        if price is not None:
            prices.set_price(actor, prices.ensure_price_book(), spec.model_name(), price)
        return made if requires is None else require(actor, made, requires)


def require(actor: Actor, made: Deployment, requires: PoolRequirements) -> Deployment:
    """Set what the pools of a deployment must have, and return it."""
    operations.require(actor, made.name, requires)
    made.refresh_from_db(fields=["requires"])
    return made


def served(name: str) -> Deployment | None:
    """Return the deployment of the platform's model of this name, with what it will serve; None for a new one."""
    rows = Deployment.objects.select_related("revision__model").filter(revision__model__name=name)
    found = rows.order_by("name").first()
    return None if found is None else rollouts.as_wanted(found)


def check_arguments(described: Description, warn: Callable[[str], None]) -> None:
    """Let the engine's own parser check what somebody chose; in no transaction, because vLLM's takes seconds."""
    if why := engine_arguments.check(described):
        warn(f"The engine's arguments are not checked on this machine: {why}. A replica that refuses them says so.")


def _engine_version(name: str, spec: ModelSpec, pool: Pool) -> str:
    """Return the version that a model has, of a new one or another engine the one that most nodes of the pool have."""
    found = served(name)
    if found is not None and found.revision.engine == spec.engine:
        return found.revision.engine_version
    return engine_versions.for_new_model(spec.engine, [pool])


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
