"""Tenants with a project and a key."""

from __future__ import annotations

from dataclasses import dataclass

from tenants import registry
from tenants.audit import Actor
from tenants.keys import keys
from tenants.models import ApiKey, Project, Tenant

OPERATOR = Actor(kind="user", name="ada")


@dataclass(frozen=True, slots=True, kw_only=True)
class Customer:
    """A tenant, its first project, and a key of that project with its text."""

    tenant: Tenant
    project: Project
    key: ApiKey
    secret: str


def create(slug: str) -> Customer:
    """Create a tenant, a project and a key."""
    tenant = registry.create_tenant(OPERATOR, slug=slug, name=slug.title())
    project = Project.objects.get(tenant=tenant)
    issued = keys.issue(OPERATOR, project, name="first")
    return Customer(tenant=tenant, project=project, key=issued.key, secret=issued.secret)
