"""Deploy a model beside the first one, or change what a deployed one serves. Django must be set up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from django.conf import settings
from django.db import transaction

from billing.pricing import prices
from catalogue import administration
from catalogue import registry as catalogue
from catalogue.models import Model, ModelRevision
from hearth.checks.preflight import PreflightError
from hearth.instance.start_options import PoolOptions
from hearth.provisioning import cluster, model_checks, model_files
from hearth.provisioning.model_source import ModelSpec, deployment_name, is_tiny
from tenants import registry
from tenants.audit import Actor
from tenants.ids import PLATFORM_SLUG
from workers.engines.arguments import commit_of
from workers.engines.errors import UnknownEngineKey
from workers.fleet import deployments
from workers.models import Deployment, Pool
from workers.scheduler import reconciler
from workers.weights import hub_tokens
from workers.weights.hub_tokens import TokenUnreadable


@transaction.atomic
def deploy(actor: Actor, spec: ModelSpec, replicas: int | None = None) -> Deployment:
    """Deploy a model of the platform on this node's pool, or change its revision and its number of replicas.

    ``replicas`` None leaves them, and is 1 for a new model. An archived model is restored. Idempotent. Name, source
    and size are checked before anything changes. Raises BadName, PreflightError, NotAllowed when a tenant has the name,
    OSError, and the errors of ``deployments``.
    """
    pool = cluster.local_pool(settings.NODE_NAME, PoolOptions())
    name = spec.model_name()
    given = spec.hub_token
    spec = model_checks.check(name, replace(spec, hub_token=given or _stored_token(name)), pool)
    prices.exclude_batches()  # these two locks before any row of the model and before the policy epoch
    reconciler.lock(wait=True)
    revision = catalogue.register(actor, registry.find_tenant(PLATFORM_SLUG), spec.described())
    if given is not None:
        hub_tokens.store(actor, revision.model, given)
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


def served(name: str) -> Deployment | None:
    """Return the deployment of the platform's model of this name; None for a new one."""
    found = Deployment.objects.select_related("revision__model").filter(revision__model__name=name)
    return found.order_by("name").first()


@transaction.atomic
def resize(
    actor: Actor,
    found: Deployment,
    *,
    replicas: int | None,
    slots_per_replica: int | None,
    tenants: Sequence[str] | None,
) -> Deployment:
    """Change how many replicas a model has, of how many slots, and who sees it; None leaves each. What it serves stays.

    An archived model is restored. Raises PreflightError, NotFound, BadCount.
    """
    pools = list(Pool.objects.filter(deploymentpool__deployment=found).order_by("deploymentpool__sequence"))
    if slots_per_replica is not None and pools:
        model_checks.check_gang(slots_per_replica, pools[0])
        _check_fit(found.revision, pools[0], slots_per_replica)
    prices.exclude_batches()
    reconciler.lock(wait=True)
    model = found.revision.model
    if tenants is not None:
        administration.set_visibility(actor, model.name, Model.Visibility.PRIVATE, tenants)
    administration.restore(actor, model.name)
    deployments.restore(actor, model)
    made = deployments.redeploy(
        actor, found.name, revision=found.revision, pools=pools, slots_per_replica=slots_per_replica
    )
    return made if replicas is None else deployments.scale(actor, found.name, replicas)


def _stored_token(name: str) -> str | None:
    """Return the token of a model for the hub, if it has one. Raises PreflightError if that cannot be opened."""
    model = Model.objects.filter(name=name).first()
    try:
        return hub_tokens.read(model.id) if model is not None else None
    except (UnknownEngineKey, TokenUnreadable) as error:
        raise PreflightError(
            f"The stored token of {name} cannot be read: {error}.", f"Set it again: `hearth model secret {name}`."
        ) from error


def _check_fit(revision: ModelRevision, pool: Pool, slots: int) -> None:
    """Raise PreflightError if the weights of what is served do not fit into ``slots``, or cannot be looked up."""
    if revision.engine == "vllm" and not is_tiny(revision.source):
        token = _stored_token(revision.model.name)
        files = model_files.find(revision.source, commit_of(revision.engine_args), token)
        model_checks.check_fit(files, pool, slots)
