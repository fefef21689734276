"""Two tenants for a first look at a new instance, each with a key that may do everything there.

A tenant, its key and the entry in the file are made together, once, and never again: a key that an operator revoked, a
tenant that was archived, erased or had its name before, and a file that was removed stay as they are. Erasing a tenant
frees its name and deletes what it was called, so none is made where any tenant was erased.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from django.db import transaction

from hearth.provisioning import private_file
from retention.models import Erasure
from tenants import registry
from tenants.audit import SYSTEM
from tenants.errors import KeyRefused
from tenants.keys import keys
from tenants.models import Project, Tenant
from tenants.policy import limits
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget
from tenants.registry import Policy

#: The demo keys are the one exception to "shown once": they stay in this file of the data directory, mode 0600.
FILE_NAME = "demo-keys.json"
#: (slug, name, policy).
TENANTS = (
    ("acme", "Acme", Policy(cache_mode="all")),
    ("globex", "Globex", Policy(cache_mode="deterministic")),
)
#: The limit of each demo tenant. Generous but finite, so that a runaway script is refused.
LIMIT = LimitValues(requests_per_minute=6000)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTenant:
    """A demo tenant and the text of its API key."""

    slug: str
    api_key: str


def ensure(data_dir: Path, *, create: bool) -> tuple[DemoTenant, ...]:
    """Return the demo tenants of this instance whose key works; with ``create``, make those that never were.

    Raises OSError when the keys cannot be written; the tenant is not made then.
    """
    file = data_dir / FILE_NAME
    known: dict[str, str] = json.loads(file.read_text()) if file.is_file() else {}
    if create and not Erasure.objects.exists():
        for slug, name, policy in TENANTS:
            if not Tenant.objects.filter(slug=slug).exists():
                _create(file, known, slug, name, policy)
    made = (DemoTenant(slug=slug, api_key=known[slug]) for slug, _, _ in TENANTS if slug in known)
    return tuple(each for each in made if _works(each.api_key))


@transaction.atomic
def _create(file: Path, known: dict[str, str], slug: str, name: str, policy: Policy) -> None:
    tenant = registry.create_tenant(SYSTEM, slug=slug, name=name, policy=policy)
    limits.set_limit(SYSTEM, PolicyTarget(tenant=tenant), LIMIT)
    project = Project.objects.get(tenant=tenant, slug="default")
    known[slug] = keys.issue(SYSTEM, project, name="demo", scopes=keys.SCOPES).secret
    private_file.write(file, json.dumps(known, indent=2))


def _works(api_key: str) -> bool:
    try:
        keys.authenticate(api_key)
    except KeyRefused:
        return False
    return True
