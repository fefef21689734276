"""Issue, check and revoke tenant API keys (format: ``tenants.secret_format``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from tenants import audit, epoch, secret_format
from tenants.audit import Actor
from tenants.errors import BadName, KeyRefused, NotAllowed
from tenants.models import ApiKey, Project, Tenant, User

PREFIX = "hk"
SCOPES = ("inference", "management:read", "management:write")


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedKey:
    """A new key and, this once, its text."""

    key: ApiKey
    secret: str


@transaction.atomic
def issue(
    actor: Actor,
    project: Project,
    *,
    name: str,
    scopes: Sequence[str] = ("inference", "management:read"),
    allowed_models: Sequence[str] = (),
    expires_at: datetime | None = None,
    created_by: User | None = None,
) -> IssuedKey:
    """Create a key; its text is returned here and never again.

    Raises NotAllowed for an archived project or tenant, BadName for a scope that is not one of SCOPES.
    """
    if project.archived_at is not None:
        raise NotAllowed("project", project.slug, "archived")
    if project.tenant.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", project.tenant.slug, project.tenant.state)
    unknown = set(scopes) - set(SCOPES)
    if unknown:
        raise BadName("scope", ", ".join(sorted(unknown)), ", ".join(SCOPES))
    credential = secret_format.generate(PREFIX)
    stored, pepper_version = secret_format.digest(credential.secret)
    key = ApiKey.objects.create(
        public_id=credential.public_id,
        project=project,
        tenant=project.tenant,
        name=name,
        secret_hmac=stored,
        pepper_version=pepper_version,
        scopes=list(scopes),
        allowed_models=list(allowed_models),
        expires_at=expires_at,
        created_by=created_by,
    )
    audit.record(
        actor,
        "key.issued",
        ("key", key.id),
        tenant=project.tenant,
        after={"public_id": key.public_id, "name": name, "project": project.slug, "scopes": list(scopes)},
    )
    epoch.bump()
    return IssuedKey(key=key, secret=credential.text())


@transaction.atomic
def revoke(actor: Actor, key: ApiKey) -> ApiKey:
    """Refuse the key everywhere within a second. Revoking it again changes nothing."""
    locked = ApiKey.objects.select_for_update().get(id=key.id)
    if locked.revoked_at is not None:
        return locked
    locked.revoked_at = timezone.now()
    locked.save(update_fields=["revoked_at"])
    audit.record(
        actor,
        "key.revoked",
        ("key", locked.id),
        tenant=locked.tenant,
        before={"revoked_at": None},
        after={"revoked_at": locked.revoked_at.isoformat()},
    )
    epoch.bump()
    return locked


def authenticate(text: str) -> ApiKey:
    """Return the live key of this text, read from the database (the gateway uses its snapshot instead).

    Raises KeyRefused with a reason.
    """
    credential = secret_format.parse(text)
    if credential is None or credential.prefix != PREFIX:
        raise KeyRefused("malformed")
    key = ApiKey.objects.select_related("tenant", "project").filter(public_id=credential.public_id).first()
    if key is None or not secret_format.matches(credential.secret, bytes(key.secret_hmac), key.pepper_version):
        raise KeyRefused("unknown")
    if key.revoked_at is not None:
        raise KeyRefused("revoked")
    if key.expires_at is not None and key.expires_at <= timezone.now():
        raise KeyRefused("expired")
    if key.tenant.state != Tenant.State.ACTIVE:
        raise KeyRefused("tenant_suspended")
    if key.project.archived_at is not None:
        raise KeyRefused("project_archived")
    return key
