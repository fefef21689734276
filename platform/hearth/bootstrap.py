"""What a new instance has from its first minute: an operator, two demo tenants, a model, its price, a deployment.

Running it again changes nothing: same data, same keys.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from django.conf import settings
from django.db import transaction

from billing import prices
from catalogue import registry as catalogue
from catalogue.models import ModelRevision
from catalogue.registry import Description
from hearth import cluster, env
from tenants import keys, registry
from tenants.audit import SYSTEM
from tenants.errors import KeyRefused, NotFound
from tenants.ids import PLATFORM_SLUG
from tenants.models import Project, Tenant, User
from tenants.registry import Policy
from workers import deployments, operations
from workers.engines.driver import TINY_MODEL
from workers.models import Deployment, Pool

ADMIN = "admin"
TINY_NAME = "hearth-tiny"
#: The demo keys are the one exception to "shown once": they stay in this file, mode 0600.
DEMO_KEYS_FILE = "demo-keys.json"
#: (slug, name, policy). Generous, but finite: a runaway script is told so.
DEMO_TENANTS = (
    ("acme", "Acme", Policy(cache_mode="all", requests_per_minute=6000)),
    ("globex", "Globex", Policy(cache_mode="deterministic", requests_per_minute=6000)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTenant:
    """A demo tenant and its key's text."""

    slug: str
    api_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped:
    """How to sign in and what to call."""

    admin_username: str
    admin_password: str
    tenants: tuple[DemoTenant, ...]
    model_name: str


def run(*, engine: Literal["vllm", "simulated"], model: str, replicas: int, node: str) -> Bootstrapped:
    """Create what is missing and return how to use it. ``model`` is a Hugging Face id, a folder, or empty.

    Needs a migrated database. Raises what the rooms raise, and OSError when the keys cannot be written.
    """
    cluster.declare_secrets()
    platform = _tenant(PLATFORM_SLUG, "Platform", Policy(cache_mode="off"))
    _admin()
    revision = _model(platform, engine, model)
    prices.ensure_demo_prices(SYSTEM, revision.model.name)
    _deployment(revision, replicas, node)
    demo = tuple(_demo_tenant(slug, name, policy) for slug, name, policy in DEMO_TENANTS)
    return Bootstrapped(
        admin_username=ADMIN,
        admin_password=settings.SECRETS.admin_password,
        tenants=demo,
        model_name=revision.model.name,
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


def _model(owner: Tenant, engine: Literal["vllm", "simulated"], model: str) -> ModelRevision:
    source = model or str(TINY_MODEL)
    folder = Path(source)
    name = TINY_NAME if not model else folder.name if folder.is_dir() else model
    described = Description(
        name=name,
        source=str(folder.absolute()) if folder.is_dir() else source,
        engine=engine,
        context_length_tokens=_context_length(folder),
        weights_digest=_folder_digest(folder) if folder.is_dir() else "",
        public=True,
    )
    return catalogue.register(SYSTEM, owner, described)


def _context_length(folder: Path) -> int:
    """Return HEARTH_CONTEXT_TOKENS, or the model's own limit where its folder tells a smaller one."""
    wanted = env.integer("HEARTH_CONTEXT_TOKENS", minimum=1)
    config = folder / "config.json"
    if not config.is_file():
        return wanted
    return min(wanted, int(json.loads(config.read_text()).get("max_position_embeddings") or wanted))


def _folder_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file():
            digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


@transaction.atomic
def _deployment(revision: ModelRevision, replicas: int, node: str) -> None:
    """Deploy the revision on this node; a deployment of another revision under the same name is moved to it.

    What the node's pool served under other names is scaled to nothing: an instance serves the model it was asked for.
    """
    name = "".join(c if c.isalnum() else "-" for c in revision.model.name.lower()).strip("-")[:63]
    pool = _pool(node or socket.gethostname())
    for other in Deployment.objects.filter(pools=pool, archived_at=None).exclude(name=name).order_by("id"):
        deployments.scale(SYSTEM, other.name, 0)
    existing = Deployment.objects.filter(name=name).first()
    if existing is None:
        deployments.create(SYSTEM, name=name, revision=revision, pools=[pool], replicas=replicas)
        return
    deployments.redeploy(SYSTEM, name, revision=revision, pools=[pool])
    deployments.scale(SYSTEM, name, replicas)


def _pool(node: str) -> Pool:
    """Return the node's pool, keeping as many placeholders, and as warm, as the environment says."""
    pool = cluster.local_pool(node)
    operations.warm(SYSTEM, pool.name, settings.PLACEHOLDERS, env.text("HEARTH_PLACEHOLDER_LEVEL"))
    return pool


def _demo_tenant(slug: str, name: str, policy: Policy) -> DemoTenant:
    tenant = _tenant(slug, name, policy)
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
