"""Create the first data of a new instance: an operator, perhaps demo tenants, a model, its price, a deployment.

Running it again changes nothing: data and keys stay, and so do later changes by operators.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from django.conf import settings
from django.db import transaction

from billing.pricing import prices
from catalogue import administration, engine_options
from catalogue import registry as catalogue
from catalogue.models import ModelRevision
from catalogue.registry import Description
from hearth.checks.preflight import PreflightError
from hearth.instance import start_options
from hearth.instance.start_options import (
    DEFAULT_LEVEL,
    DEFAULT_PLACEHOLDERS,
    DEFAULT_REPLICAS,
    EngineChoice,
    StartOptions,
)
from hearth.provisioning import cluster, demo_tenants, deploy, private_file
from hearth.provisioning.demo_tenants import DemoTenant
from tenants import registry
from tenants.audit import SYSTEM
from tenants.errors import NotFound
from tenants.ids import PLATFORM_SLUG
from tenants.models import Tenant, User
from tenants.registry import Policy
from workers.engines.arguments import commit_of
from workers.engines.choice import driver_for
from workers.engines.driver import DEFAULT_CONTEXT_TOKENS, TINY_MODEL
from workers.errors import ModelRefused
from workers.fleet import deployments, operations, rollouts
from workers.model_sources import checks
from workers.model_sources.source import TINY_NAME, ModelSpec, deployment_name, is_tiny
from workers.models import Deployment, Pool
from workers.weights.folder import folder_digest

ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped:
    """How to sign in and which model to call. ``replicas`` is what :func:`needed_replicas` returns."""

    admin_username: str
    admin_password: str
    tenants: tuple[DemoTenant, ...]
    #: Empty: no model was deployed.
    model_name: str
    #: A sentence for operators if the model has no price, or empty.
    price_note: str
    replicas: int


def run_without_model(*, demo: bool) -> Bootstrapped:
    """Create the operator and, with ``demo``, the demo tenants; deploy nothing and register no node.

    Needs a migrated database. Raises PreflightError if the secrets are not the cluster's, and OSError when the keys
    cannot be written.
    """
    _first_people()
    return Bootstrapped(
        admin_username=ADMIN,
        admin_password=settings.SECRETS.admin_password,
        tenants=demo_tenants.ensure(settings.DATA_DIR, create=demo),
        model_name="",
        price_note="",
        replicas=0,
    )


def run(*, engine: Literal["vllm", "simulated"], options: StartOptions, node: str, demo: bool) -> Bootstrapped:
    """Create what is missing and return how to use it; ``demo`` is whether to make demo tenants.

    Needs a migrated database. Raises PreflightError if the name of a given model is taken, the errors of the packages
    it calls, and OSError when the keys cannot be written.
    """
    platform = _first_people()
    last = start_options.read_last(settings.DATA_DIR)
    before = _last_revision(last)
    deployed = _deployed(before, last)
    described = _unchanged(options, deployed, engine)
    if described is None:
        spec = _model(options, before, deployed, engine)
        if not spec.name:
            _check_name_is_free(spec.model_name())
        if before is None or (before.source, before.engine) != (spec.stored_source(), engine):
            spec = checks.pinned(spec)
        described = spec.described()
    slots_now = None if deployed is None else Deployment.objects.get(id=deployed.id).slots_per_replica
    revision = catalogue.record(SYSTEM, platform, described, slots_now=slots_now)
    if is_tiny(revision.source):
        prices.ensure_demo_prices(SYSTEM, revision.model.name)
    name = _deployment_of(revision, before, last)
    _deploy(name, revision, options, last, node)
    return Bootstrapped(
        admin_username=ADMIN,
        admin_password=settings.SECRETS.admin_password,
        tenants=demo_tenants.ensure(settings.DATA_DIR, create=demo),
        model_name=revision.model.name,
        price_note=deploy.price_note(revision.model.name),
        replicas=needed_replicas(settings.DATA_DIR),
    )


def remembered_engine(data_dir: Path) -> EngineChoice:
    """Return the engine option of the last start; ``auto`` before the first."""
    last = start_options.read_last(data_dir)
    found: EngineChoice | None = last.get("engine")
    if found is not None:
        return found
    revision = _last_revision(last)
    return "simulated" if revision is not None and revision.engine == "simulated" else "auto"


def needed_replicas(data_dir: Path) -> int:
    """Return the minimum number of replicas of the model of the last start; 0 while its deployment is archived."""
    name = start_options.read_last(data_dir).get("deployment")
    minimum = Deployment.objects.filter(name=name, archived_at=None).values_list("min_replicas", flat=True).first()
    return minimum or 0


def _last_revision(last: Mapping[str, Any]) -> ModelRevision | None:
    if "revision" not in last:
        return None
    return ModelRevision.objects.select_related("model").filter(id=last["revision"]).first()


def _deployed(before: ModelRevision | None, last: Mapping[str, Any]) -> Deployment | None:
    """Return the deployment of the last start's model, with the options that operators gave it since."""
    if before is None:
        return None
    found = Deployment.objects.select_related("revision__model").filter(name=last.get("deployment")).first()
    return rollouts.as_wanted(found) if found is not None and found.revision.model_id == before.model_id else None


def _unchanged(
    options: StartOptions, deployed: Deployment | None, engine: Literal["vllm", "simulated"]
) -> Description | None:
    """Return what is deployed, with the files that its folder has at this start; None if something else is wanted.

    None, too, for files or a place of Hearth's own model that are not those of the revision.
    """
    if deployed is None or options.model is not None or options.context_tokens is not None:
        return None
    revision = deployed.revision
    if revision.engine != engine or (is_tiny(revision.source) and Path(revision.source) != TINY_MODEL.absolute()):
        return None
    files = folder_digest(Path(revision.source))
    present = catalogue.described(revision, deployed.slots_per_replica, weights_digest=files)
    return None if present is None else replace(present, weights_digest=files or present.weights_digest)


def _model(
    options: StartOptions,
    last: ModelRevision | None,
    deployed: Deployment | None,
    engine: Literal["vllm", "simulated"],
) -> ModelSpec:
    """Return the model of the options; without one, the model of the last start, under the name that it has now.

    That one keeps the options that it is ``deployed`` with. TINY_NAME is Hearth's own model.
    """
    if options.model is None and last is not None:
        source, name = "" if is_tiny(last.source) else last.source, last.model.name
        context_tokens, commit = last.context_length_tokens, commit_of(last.engine_args)
    else:
        wanted = options.model or ""
        source, name, context_tokens = "" if wanted == TINY_NAME else wanted, "", DEFAULT_CONTEXT_TOKENS
        # the same model again is the same commit: a start asks the Hub for nothing and changes nothing
        commit = commit_of(last.engine_args) if last is not None and last.source == source else ""
    spec = ModelSpec(
        source=source,
        name=name,
        engine=engine,
        context_tokens=options.context_tokens or context_tokens,
        commit=commit,
    )
    same = last is not None and (last.source, last.engine) == (spec.stored_source(), engine)
    spec = replace(spec, engine_version=last.engine_version if last is not None and same else _own_version(engine))
    if deployed is None or last is None:
        return spec
    if last.source != spec.stored_source() and (source or not is_tiny(last.source)):
        return spec
    return replace(
        spec,
        context_tokens=options.context_tokens or deployed.revision.context_length_tokens,
        slots_per_replica=deployed.slots_per_replica,
        options=engine_options.from_json(deployed.revision.options),
        engine_version=deployed.revision.engine_version if deployed.revision.engine == engine else spec.engine_version,
    )


def _own_version(engine: Literal["vllm", "simulated"]) -> str:
    """Return the version that this machine installed last; empty where another machine has the engines."""
    return next(reversed(driver_for(engine).versions()), "")


def _check_name_is_free(name: str) -> None:
    try:
        checks.check_name_is_free(name)
    except ModelRefused as error:
        raise PreflightError(
            error.problem, "Leave out --model to serve the model of the last start, or give another one."
        ) from error


def _first_people() -> Tenant:
    """Declare the secrets and create the operator and the platform's own tenant, which is returned."""
    cluster.declare_secrets()
    platform = _tenant(PLATFORM_SLUG, "Platform", Policy(cache_mode="off"))
    _admin()
    return platform


def _tenant(slug: str, name: str, policy: Policy) -> Tenant:
    try:
        return registry.find_tenant(slug)
    except NotFound:
        return registry.create_tenant(SYSTEM, slug=slug, name=name, policy=policy)


def _admin() -> None:
    user, created = User.objects.get_or_create(username=ADMIN, defaults={"is_staff": True, "is_superuser": True})
    if created:
        user.set_password(settings.SECRETS.admin_password)
        user.save(update_fields=["password"])


def _deployment_of(revision: ModelRevision, before: ModelRevision | None, last: Mapping[str, Any]) -> str:
    """Return the name of the model's deployment, which stays when the model is renamed; a new name for a new model."""
    if before is not None and before.model_id == revision.model_id and "deployment" in last:
        return str(last["deployment"])
    found = Deployment.objects.filter(revision__model=revision.model).order_by("name").first()
    return found.name if found is not None else deployment_name(revision.model.name)


def _deploy(name: str, revision: ModelRevision, options: StartOptions, last: Mapping[str, Any], node: str) -> None:
    """Deploy the revision on this node under this name, and remember what was wanted for the next start.

    Applies only what differs from the last start, so that an operator's changes in the meantime stay. Given another
    model, it scales the last start's model to zero, and nothing else.
    """
    wanted = {
        "deployment": name,
        "revision": str(revision.id),
        "engine": options.engine or remembered_engine(settings.DATA_DIR),
        "replicas": _given(options.replicas, last.get("replicas"), DEFAULT_REPLICAS),
        "placeholders": _given(options.placeholders, last.get("placeholders"), DEFAULT_PLACEHOLDERS),
        "placeholder_level": _given(options.placeholder_level, last.get("placeholder_level"), DEFAULT_LEVEL),
    }
    with transaction.atomic():
        pool = cluster.local_pool(node or socket.gethostname(), options.new_node)
        _apply(revision, wanted, last, pool)
    private_file.write(settings.DATA_DIR / start_options.FILE_NAME, json.dumps(wanted, indent=2))


def _given(*values: object) -> object:
    """Return the first value that is not None."""
    return next(value for value in values if value is not None)


def _apply(revision: ModelRevision, wanted: Mapping[str, Any], last: Mapping[str, Any], pool: Pool) -> None:
    new = {key for key, value in wanted.items() if last.get(key) != value}
    name, replicas = wanted["deployment"], wanted["replicas"]
    if new & {"placeholders", "placeholder_level"}:
        operations.warm(SYSTEM, pool.name, wanted["placeholders"], wanted["placeholder_level"])
    earlier = Deployment.objects.filter(name=last.get("deployment"), archived_at=None).exclude(name=name).first()
    if earlier is not None:
        deployments.scale(SYSTEM, earlier.name, 0)
    existing = Deployment.objects.filter(name=name).first()
    if existing is None:
        deployments.create(SYSTEM, name=name, revision=revision, pools=[pool], replicas=replicas)
        return
    if existing.archived_at is not None:
        if not new & {"deployment", "revision", "replicas"}:
            return  # an operator archived it, and this start asks for nothing else
        administration.restore(SYSTEM, revision.model.name)
        deployments.restore(SYSTEM, revision.model)
    if new & {"deployment", "revision"}:
        pools = list(Pool.objects.filter(deploymentpool__deployment=existing).order_by("deploymentpool__sequence"))
        deployments.redeploy(SYSTEM, name, revision=revision, pools=pools or [pool])
    if new & {"deployment", "replicas"}:
        deployments.scale(SYSTEM, name, replicas)
