"""Deploy a model beside the first one, or change what a deployed one serves. Django must be set up."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction

from billing.pricing import prices
from catalogue import administration
from catalogue import registry as catalogue
from catalogue.models import Model
from hearth.instance.start_options import PoolOptions
from hearth.provisioning import cluster, model_checks
from hearth.provisioning.model_source import ModelSpec, deployment_name
from tenants import registry
from tenants.audit import Actor
from tenants.ids import PLATFORM_SLUG
from workers.fleet import deployments
from workers.models import Deployment
from workers.scheduler import reconciler


@transaction.atomic
def deploy(actor: Actor, spec: ModelSpec, replicas: int) -> Deployment:
    """Deploy a model of the platform on this node's pool, or change its revision and its number of replicas.

    An archived model is restored. Idempotent: the arguments are absolute. Name, source and size are checked before
    anything changes. Raises BadName, PreflightError, NotAllowed when a tenant has the name, OSError, and the errors of
    ``deployments``.
    """
    pool = cluster.local_pool(settings.NODE_NAME, PoolOptions())
    name = spec.model_name()
    spec = model_checks.check(name, spec, pool)
    prices.exclude_batches()  # these two locks before any row of the model and before the policy epoch
    reconciler.lock(wait=True)
    revision = catalogue.register(actor, registry.find_tenant(PLATFORM_SLUG), spec.described())
    if spec.tenants is not None:
        administration.set_visibility(actor, name, Model.Visibility.PRIVATE, spec.tenants)
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
            replicas=replicas,
            slots_per_replica=spec.slots_per_replica,
        )
    deployments.redeploy(actor, found.name, revision=revision, pools=[pool], slots_per_replica=spec.slots_per_replica)
    return deployments.scale(actor, found.name, replicas)
