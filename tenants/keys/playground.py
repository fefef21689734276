"""Keys of the portal's playground: one for each member and project, which lives for 15 minutes and only calls models.

Its row stays and gets a new secret each time, so usage and the log of a member's experiments have one key, and a member
has no more of them than there are projects. Nobody else manages them; who may revoke keys may revoke these.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from tenants import audit, policy_epoch
from tenants.audit import Actor
from tenants.errors import NotAllowed
from tenants.keys import key_format, keys
from tenants.keys.keys import IssuedKey
from tenants.models import ApiKey, Membership, Project, Tenant, User

#: Long enough to write a prompt and read an answer; the page asks for the next secret by itself.
LIFETIME = timedelta(minutes=15)
REVOKED = "revoked by somebody else, for 15 minutes"


@transaction.atomic
def issue(actor: Actor, project: Project, member: User, *, roles: Collection[str]) -> IssuedKey:
    """Return the member's key of a project with a new secret; the one before stops working within a second.

    ``roles``: those that may call models. Raises NotAllowed for a person who has none of them now, for an archived
    project or tenant, and for LIFETIME after somebody else revoked the key.
    """
    keys.require_open(project)
    Tenant.objects.select_for_update().get(id=project.tenant_id)  # two pages of one member make one row
    # Whoever removes the member at this moment waits, and then revokes this key too.
    found = Membership.objects.select_for_update().filter(user=member, tenant_id=project.tenant_id).first()
    if found is None or found.role not in roles:
        raise NotAllowed("member", member.get_username(), "without the right to call models")
    _require_not_taken(project, member)
    credential = key_format.generate(keys.PREFIX)
    stored, pepper_version = key_format.digest(credential.secret)
    fields = {
        "name": f"Playground of {member.get_username()}",
        "secret_hmac": stored,
        "pepper_version": pepper_version,
        "scopes": list(keys.DEFAULT_SCOPES),
        "expires_at": timezone.now() + LIFETIME,
        "revoked_at": None,
    }
    key, _ = ApiKey.objects.update_or_create(
        project=project,
        created_by=member,
        purpose=ApiKey.Purpose.PLAYGROUND,
        defaults=fields,
        create_defaults={**fields, "public_id": credential.public_id, "tenant_id": project.tenant_id},
    )
    after = {
        "public_id": key.public_id,
        "project": project.slug,
        "purpose": key.purpose,
        "name": key.name,
        "scopes": key.scopes,
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
    }
    audit.record(actor, "key.issued", ("key", key.id), tenant=project.tenant, after=after)
    policy_epoch.bump(keys=[key.id])
    credential = key_format.Credential(prefix=keys.PREFIX, public_id=key.public_id, secret=credential.secret)
    return IssuedKey(key=key, secret=credential.text())


@transaction.atomic
def revoke_of(actor: Actor, member: User, tenant: Tenant | None = None) -> int:
    """Revoke a person's live keys of the playground, in one tenant or in all, within a second; return how many.

    For a person whose rights change or who signs out: what they may do then decides about the next key.
    """
    live = ApiKey.objects.filter(
        created_by=member, purpose=ApiKey.Purpose.PLAYGROUND, revoked_at=None, expires_at__gt=timezone.now()
    )
    found = list(live if tenant is None else live.filter(tenant=tenant))
    for key in found:
        keys.revoke(actor, key)
    ApiKey.objects.filter(id__in=[key.id for key in found]).update(expires_at=F("revoked_at"))  # the next need not wait
    return len(found)


def _require_not_taken(project: Project, member: User) -> None:
    """Raise NotAllowed if somebody revoked the key while it worked, LIFETIME ago at most."""
    own = ApiKey.objects.filter(project=project, created_by=member, purpose=ApiKey.Purpose.PLAYGROUND)
    if own.filter(revoked_at__gt=timezone.now() - LIFETIME, expires_at__gt=F("revoked_at")).exists():
        raise NotAllowed("playground key of", member.get_username(), REVOKED)
