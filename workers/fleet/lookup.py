"""Find a row by its name, or by the end of its id as lists show it."""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Model, QuerySet, TextField
from django.db.models.functions import Cast

from workers.errors import Ambiguous, NotFound
from workers.models import Deployment, Node, Placeholder, Pool, Replica, Slot
from workers.scheduler.reconciler import ENDED

#: Most names that an error lists.
KNOWN = 12
#: Characters of an id that lists show.
SHORT = 6

_Row = TypeVar("_Row", bound=Model)
_OVER = (Placeholder.State.PROMOTED, Placeholder.State.EVICTED, Placeholder.State.LOST)


def short(identity: object) -> str:
    """Return the end of an id that lists show and verbs take."""
    return str(identity)[-SHORT:]


def node(name: str) -> Node:
    """Return the node, locked. Raises NotFound with the names of the nodes."""
    return _named(
        Node.objects.filter(removed_at=None).select_for_update(no_key=True, of=("self",)).select_related("pool"),
        "node",
        name,
    )


def pool(name: str) -> Pool:
    """Return the pool, locked. Raises NotFound with the names of the pools."""
    return _named(Pool.objects.select_for_update(no_key=True), "pool", name)


def deployment(name: str) -> Deployment:
    """Return the deployment, locked, unless it is archived. Raises NotFound with the names of the others."""
    rows = Deployment.objects.filter(archived_at=None).select_for_update(no_key=True, of=("self",))
    return _named(rows.select_related("revision"), "deployment", name)


def slot(node_name: str, device_uuid: str) -> Slot:
    """Return the slot of the node, locked. Raises NotFound with the node's slots."""
    rows = Slot.objects.filter(node=node(node_name)).select_for_update(no_key=True)
    found = rows.filter(device_uuid=device_uuid).first()
    if found is None:
        known = rows.order_by("index").values_list("device_uuid", flat=True)
        raise NotFound("slot", f"{node_name} {device_uuid}", tuple(known[:KNOWN]))
    return found


def slot_address(identity: str) -> tuple[str, str]:
    """Return the node and the device UUID of the slot with that id. Raises NotFound."""
    found = Slot.objects.filter(id=identity).values_list("node__name", "device_uuid").first()
    if found is None:
        raise NotFound("slot", identity)
    return found


def replica(identity: str) -> Replica:
    """Return the replica whose id ends with ``identity``, preferring one that has not ended.

    Raises NotFound, Ambiguous.
    """
    rows = Replica.objects.select_related("deployment", "node")
    return _ending(rows.exclude(state__in=ENDED), rows.filter(state__in=ENDED), "replica", identity)


def placeholder(identity: str) -> Placeholder:
    """Return the placeholder whose id ends with ``identity``, preferring one with a slot.

    Raises NotFound, Ambiguous.
    """
    rows = Placeholder.objects.select_related("node__pool", "deployment__revision")
    return _ending(rows.exclude(state__in=_OVER), rows.filter(state__in=_OVER), "placeholder", identity)


def _named(rows: QuerySet[_Row], kind: str, name: str) -> _Row:
    found = rows.filter(name=name).first()
    if found is None:
        raise NotFound(kind, name, tuple(rows.order_by("name").values_list("name", flat=True)[:KNOWN]))
    return found


def _ending(now: QuerySet[_Row], past: QuerySet[_Row], kind: str, identity: str) -> _Row:
    """Return the one row of ``now``, else of ``past``, whose id ends with ``identity``; ``chat/1a2b3c`` is an end."""
    end = identity.rpartition("/")[2].lower()
    for rows in (now, past):
        found = list(rows.annotate(text=Cast("id", TextField())).filter(text__endswith=end).order_by("-id")[:KNOWN])
        if len(found) > 1:
            raise Ambiguous(kind, identity, tuple(str(row.pk) for row in found))
        if found and end:
            return found[0]
    raise NotFound(kind, identity, tuple(short(pk) for pk in now.order_by("id").values_list("pk", flat=True)[:KNOWN]))
