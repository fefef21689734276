"""Let a machine with a token join as a node, and remove a node for good."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from tenants import audit
from tenants.audit import Actor
from workers.errors import Refused, WorkerError
from workers.fleet import deployments, lookup
from workers.fleet.joining import join_messages, node_roles, node_tokens
from workers.fleet.joining.join_messages import Forged, JoinReply, JoinRequest, SealedReply, SignedRequest
from workers.models import Node, NodeCertificate, NodeToken, Placeholder, Pool, Replica, ReplicaEvent, Slot
from workers.scheduler import reconciler
from workers.scheduler.slots import slot_leases
from workers.serving import endpoints

log = logging.getLogger(__name__)

_OVER = (Placeholder.State.EVICTED, Placeholder.State.PROMOTED)
_ENDED = (Replica.State.STOPPED, Replica.State.FAILED)


class NotAdmitted(WorkerError):
    """The caller has not shown that it knows the secret of a token of this cluster. Says nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A node that was removed. ``statement``: what a superuser still has to run, or empty."""

    node: str
    replicas: int
    statement: str


@transaction.atomic
def join(body: SignedRequest) -> SealedReply:
    """Make the machine that asks a node, and use its token up. Changes nothing if it raises.

    Raises NotAdmitted to a caller that does not know the token's secret; Refused and BadValue to one that does.
    """
    token, secret, wanted = _admitted(body)
    _check_token(token)
    node_tokens.check_name(wanted.node)
    if token.node_name and token.node_name != wanted.node:
        raise Refused("token", "for a node", f"it is for {token.node_name!r} alone", "set HEARTH_NODE to that name")
    _check_place(wanted.node, token.pool, is_bound=bool(token.node_name))
    actor = Actor(kind="system", name=f"node {wanted.node}"[:200])
    node = deployments.ensure_node(actor, pool=token.pool, name=wanted.node)
    Node.objects.filter(id=node.id).update(removed_at=None, cordoned=False)
    redis_url: str = "" if wanted.has_redis else settings.NODE_REDIS_URL
    if not redis_url and not wanted.has_redis:
        raise Refused(
            "node",
            wanted.node,
            "the portal has no HEARTH_NODE_REDIS_URL to give it",
            "set that on the first machine, or REDIS_URL on the new one, and repeat this with the same token",
        )
    NodeToken.objects.filter(id=token.id).update(used_at=Now(), used_by=wanted.node)
    audit.record(actor, "node.joined", ("node", node.id), after={"pool": token.pool.name, "token": str(token.id)})
    # Last: a role is not made again by what is rolled back.
    database_url = "" if wanted.has_database else node_roles.make(wanted.node)
    reply = JoinReply(
        node=wanted.node,
        pool=token.pool.name,
        engine_key=settings.SECRETS.engine_key,
        engine_key_fallbacks=list(settings.SECRETS.engine_key_fallbacks),
        database_url=database_url,
        redis_url=redis_url,
    )
    return join_messages.seal(reply, wanted, body, secret)


@transaction.atomic
def remove(actor: Actor, name: str) -> Removed:
    """Remove a node for good: its certificate, its rights, and what the fleet counts on it. Its history stays.

    Raises NotFound; Refused while its agent is alive.
    """
    reconciler.lock(wait=True)
    node = lookup.node(name)
    if Node.objects.filter(id=node.id, lease_expires_at__gt=Now()).exists():
        raise Refused("node", name, "its agent is alive", "stop it there with `hearth down`, and wait 15 seconds")
    ended = 0
    for replica in Replica.objects.filter(node_id=node.id).exclude(state__in=_ENDED).order_by("id"):
        Replica.objects.filter(id=replica.id).update(
            state=Replica.State.STOPPED, state_since=Now(), desired_state=Replica.Desired.STOPPED, pid=None, port=None
        )
        ReplicaEvent.objects.create(
            replica_id=replica.id,
            from_state=replica.state,
            to_state=Replica.State.STOPPED,
            reason="its node is removed",
        )
        slot_leases.release(replica_id=replica.id)
        ended += 1
    for placeholder in Placeholder.objects.filter(node_id=node.id).exclude(state__in=_OVER):
        Placeholder.objects.filter(id=placeholder.id).update(
            state=Placeholder.State.EVICTED, state_since=Now(), reason="its node is removed"
        )
        slot_leases.release(placeholder_id=placeholder.id)
    Slot.objects.filter(node_id=node.id).update(health=Slot.Health.GONE)
    NodeCertificate.objects.filter(node_id=node.id).delete()
    Node.objects.filter(id=node.id).update(removed_at=Now(), cordoned=True, epoch=node.epoch + 1)
    audit.record(actor, "node.removed", ("node", node.id), before={"name": name, "pool": node.pool.name})
    endpoints.announce()
    return Removed(node=name, replicas=ended, statement=node_roles.drop(name))


def _admitted(body: SignedRequest) -> tuple[NodeToken, bytes, JoinRequest]:
    """Return the token, its secret and the request of a caller that knows the secret. Raises NotAdmitted."""
    try:
        token_id = UUID(body.token)
    except ValueError:
        raise NotAdmitted from None
    token = NodeToken.objects.select_for_update(of=("self",)).select_related("pool").filter(id=token_id).first()
    secret = None if token is None else node_tokens.secret_of(token)
    if token is None or secret is None:
        raise NotAdmitted
    try:
        return token, secret, join_messages.read(body, secret)
    except Forged:
        log.warning("a request to join with token %s does not know its secret", token.id)
        raise NotAdmitted from None


def _check_token(token: NodeToken) -> None:
    now_valid = node_tokens.valid().filter(id=token.id).exists()
    if now_valid:
        return
    if token.used_at is not None:
        why = f"it was used by {token.used_by} at {token.used_at:%Y-%m-%d %H:%M} UTC"
    elif token.revoked_at is not None:
        why = f"it was revoked at {token.revoked_at:%Y-%m-%d %H:%M} UTC"
    else:
        why = f"it expired at {token.expires_at:%Y-%m-%d %H:%M} UTC"
    raise Refused("token", "for a node", why, "make another one: `hearth node token` on the first machine")


def _check_place(name: str, pool: Pool, *, is_bound: bool) -> None:
    """Raise unless a machine may join with this name."""
    node = Node.objects.select_related("pool").filter(name=name).first()
    if node is None:
        return
    if Node.objects.filter(id=node.id, lease_expires_at__gt=Now()).exists():
        raise Refused("node", name, "its agent is alive", "choose another HEARTH_NODE, or stop that node first")
    if is_bound and node.pool_id != pool.id:
        raise Refused(
            "node", name, f"it is in pool {node.pool.name}, and the token is for {pool.name}", "make one for its pool"
        )
    if not is_bound:
        raise Refused(
            "node",
            name,
            "it exists",
            f"choose another HEARTH_NODE; to take its place make a token with `hearth node token --node {name}`",
        )
