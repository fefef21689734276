"""Record who changed what. Every change calls this inside its transaction."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from tenants.models import AuditEntry, Tenant, User
from tenants.request_log import REQUEST_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who acts: a signed-in user, an API key (its public id), or the system (the job's name).

    ``user`` is the row of a signed-in user.
    """

    kind: Literal["user", "key", "system"]
    name: str
    request_id: UUID | None = None
    user: User | None = None

    @property
    def is_operator(self) -> bool:
        """Whether this is an operator, in the portal or a shell."""
        if self.kind == "user":
            return self.user is None or self.user.is_staff
        return self.kind == "system" and self.name != SYSTEM.name


SYSTEM = Actor(kind="system", name="hearth")


def shell(program: str) -> Actor:
    """Return the actor of a shell command: user, host and command."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return Actor(kind="system", name=f"{user}@{socket.gethostname()} by {program}")


def record(
    actor: Actor,
    action: str,
    target: tuple[str, object],
    *,
    tenant: Tenant | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEntry:
    """Append one entry. ``target`` is (kind, id); ``before`` and ``after`` hold JSON values and never a secret."""
    kind, identity = target
    return AuditEntry.objects.create(
        actor_kind=actor.kind,
        actor=actor.name,
        by_operator=actor.is_operator,
        tenant=tenant,
        action=action,
        object_kind=kind,
        object_id=str(identity),
        before=before,
        after=after,
        request_id=actor.request_id or _current_request(),
    )


def _current_request() -> UUID | None:
    """Return the id of the portal's request that makes the change; None for a command or a job."""
    current = REQUEST_ID.get()
    return UUID(current) if current else None
