"""What a new instance has from its first minute: an operator, two demo tenants, a model, its price, a deployment.

Running it again changes nothing: same data, same keys, and what operators have changed since.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from django.conf import settings
from django.db import transaction

from billing.pricing import prices
from catalogue import registry as catalogue
from catalogue.models import ModelRevision
from hearth import env
from hearth.provisioning import cluster
from hearth.provisioning.model_source import Wish, deployment_name
from tenants import keys, limits, registry
from tenants.audit import SYSTEM
from tenants.errors import KeyRefused, NotFound
from tenants.ids import PLATFORM_SLUG
from tenants.limits import LimitValues
from tenants.models import Project, Tenant, User
from tenants.policy_target import PolicyTarget
from tenants.registry import Policy
from workers.fleet import deployments, operations
from workers.models import Deployment, Pool

ADMIN = "admin"
#: The demo keys are the one exception to "shown once": they stay in this file, mode 0600.
DEMO_KEYS_FILE = "demo-keys.json"
#: What the last start was asked for.
WISH_FILE = "asked.json"
#: (slug, name, policy).
DEMO_TENANTS = (
    ("acme", "Acme", Policy(cache_mode="all")),
    ("globex", "Globex", Policy(cache_mode="deterministic")),
)
#: Of each of them. Generous, but finite: a runaway script is told so.
DEMO_LIMIT = LimitValues(requests_per_minute=6000)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTenant:
    """A demo tenant and its key's text."""

    slug: str
    api_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped:
    """How to sign in and what to call. ``replicas`` is how many the model has at least."""

    admin_username: str
    admin_password: str
    tenants: tuple[DemoTenant, ...]
    model_name: str
    replicas: int


def run(*, engine: Literal["vllm", "simulated"], model: str, replicas: int, node: str) -> Bootstrapped:
    """Create what is missing and return how to use it. ``model`` is a Hugging Face id, a folder, or empty.

    Needs a migrated database. Raises what the rooms raise, and OSError when the keys cannot be written.
    """
    cluster.declare_secrets()
    platform = _tenant(PLATFORM_SLUG, "Platform", Policy(cache_mode="off"))
    _admin()
    revision = catalogue.register(SYSTEM, platform, Wish(source=model, engine=engine).described())
    prices.ensure_demo_prices(SYSTEM, revision.model.name)
    least = _deployment(revision, replicas, node)
    demo = tuple(_demo_tenant(slug, name, policy) for slug, name, policy in DEMO_TENANTS)
    return Bootstrapped(
        admin_username=ADMIN,
        admin_password=settings.SECRETS.admin_password,
        tenants=demo,
        model_name=revision.model.name,
        replicas=least,
    )


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


def _deployment(revision: ModelRevision, replicas: int, node: str) -> int:
    """Deploy the revision on this node as asked, and return how many replicas it has at least.

    What an operator changed meanwhile stands: of a wish that was there at the last start only what differs from it is
    done. So the model of an earlier start is scaled to nothing when another is asked for, and nothing else is.
    """
    name = deployment_name(revision.model.name)
    wish = {
        "deployment": name,
        "revision": str(revision.id),
        "replicas": replicas,
        "placeholders": settings.PLACEHOLDERS,
        "placeholder_level": env.text("HEARTH_PLACEHOLDER_LEVEL"),
    }
    file = settings.DATA_DIR / WISH_FILE
    before: dict[str, object] = json.loads(file.read_text()) if file.is_file() else {}
    with transaction.atomic():
        _fulfil(revision, wish, before, node)
        least = Deployment.objects.get(name=name).min_replicas
    _write_private(file, json.dumps(wish, indent=2))
    return least


def _fulfil(revision: ModelRevision, wish: Mapping[str, Any], before: Mapping[str, object], node: str) -> None:
    new = {key for key, value in wish.items() if before.get(key) != value}
    name, replicas = wish["deployment"], wish["replicas"]
    pool = cluster.local_pool(node or socket.gethostname())
    if new & {"placeholders", "placeholder_level"}:
        operations.warm(SYSTEM, pool.name, wish["placeholders"], wish["placeholder_level"])
    earlier = Deployment.objects.filter(name=before.get("deployment"), archived_at=None).exclude(name=name).first()
    if earlier is not None:
        deployments.scale(SYSTEM, earlier.name, 0)
    existing = Deployment.objects.filter(name=name).first()
    if existing is None:
        deployments.create(SYSTEM, name=name, revision=revision, pools=[pool], replicas=replicas)
        return
    if new & {"deployment", "revision"}:
        pools = list(Pool.objects.filter(deploymentpool__deployment=existing).order_by("deploymentpool__sequence"))
        deployments.redeploy(SYSTEM, name, revision=revision, pools=pools or [pool])
    if new & {"deployment", "replicas"}:
        deployments.scale(SYSTEM, name, replicas)


def _demo_tenant(slug: str, name: str, policy: Policy) -> DemoTenant:
    is_new = not Tenant.objects.filter(slug=slug).exists()
    tenant = _tenant(slug, name, policy)
    if is_new:
        limits.set_limit(SYSTEM, PolicyTarget(tenant=tenant), DEMO_LIMIT)
    file = settings.DATA_DIR / DEMO_KEYS_FILE
    known: dict[str, str] = json.loads(file.read_text()) if file.is_file() else {}
    try:
        keys.authenticate(known.get(slug, ""))
    except KeyRefused:
        project = Project.objects.get(tenant=tenant, slug="default")
        issued = keys.issue(SYSTEM, project, name="demo", scopes=keys.SCOPES)
        known[slug] = issued.secret
        _write_private(file, json.dumps(known, indent=2))
    return DemoTenant(slug=slug, api_key=known[slug])


def _write_private(file: Path, text: str) -> None:
    partial = file.with_suffix(".part")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as content:
        content.write(text)
    partial.replace(file)
