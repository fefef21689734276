"""The target of a limit, a budget or a prediction-cache setting."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tenants.errors import NotAllowed, NotFound
from tenants.models import ApiKey, Budget, CacheSetting, Limit, Project, Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTarget:
    """A tenant, or one of its projects or keys; for one served model or, if the name is empty, for all together."""

    tenant: Tenant
    project: Project | None = None
    key: ApiKey | None = None
    model_name: str = ""

    @property
    def is_tenants_own(self) -> bool:
        """Whether the target is the tenant as a whole, which only an operator may set."""
        return self.project is None and self.key is None

    def describe(self) -> dict[str, str | None]:
        """Return the target's fields for the audit log."""
        return {
            "project": self.project.slug if self.project else None,
            "key": self.key.public_id if self.key else None,
            "model": self.model_name or None,
        }


def target(
    tenant: Tenant, *, project: str | None = None, key: UUID | None = None, model_name: str = ""
) -> PolicyTarget:
    """Return the target with this project (slug) or key (id). Does not check that the model exists.

    Raises NotFound for a project or key that is not the tenant's. Raises NotAllowed for both together, an archived
    project or tenant, a revoked key, and a rotated key, whose successor has the limits and budgets of both.
    """
    if project is not None and key is not None:
        raise NotAllowed("project", project, "given together with a key; give only one of them")
    if tenant.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", tenant.slug, tenant.state)
    return PolicyTarget(
        tenant=tenant,
        project=_project(tenant, project) if project is not None else None,
        key=_key(tenant, key) if key is not None else None,
        model_name=model_name,
    )


def target_of(bound: Limit | Budget | CacheSetting) -> PolicyTarget:
    """Return its target."""
    model_name = "" if isinstance(bound, CacheSetting) else bound.model_name
    return PolicyTarget(tenant=bound.tenant, project=bound.project, key=bound.key, model_name=model_name)


def _project(tenant: Tenant, slug: str) -> Project:
    found = Project.objects.filter(tenant=tenant, slug=slug).first()
    if found is None:
        raise NotFound("project", slug)
    if found.archived_at is not None:
        raise NotAllowed("project", slug, "archived")
    return found


def _key(tenant: Tenant, key_id: UUID) -> ApiKey:
    found = ApiKey.objects.filter(tenant=tenant, id=key_id).first()
    if found is None:
        raise NotFound("key", str(key_id))
    if found.revoked_at is not None:
        raise NotAllowed("key", found.public_id, "revoked")
    if ApiKey.objects.filter(rotated_from=found).exists():
        raise NotAllowed("key", found.public_id, "rotated; its successor has the limits, budgets and settings of both")
    return found
