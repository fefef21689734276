"""Reserve slots of a deployment for a tenant, and keep its range from excluding what is reserved."""

from __future__ import annotations

import datetime as dt
import math

from django.db import transaction

from catalogue.models import Model
from reserved_capacity import registry
from reserved_capacity.errors import ReservationRefused
from reserved_capacity.models import CapacityReservation
from reserved_capacity.registry import Wanted
from tenants.audit import Actor
from tenants.models import Tenant
from workers.errors import NotFound, Refused
from workers.fleet import rollouts
from workers.models import Deployment
from workers.scheduler import reconciler


@transaction.atomic
def reserve(actor: Actor, tenant: Tenant, wanted: Wanted) -> CapacityReservation:
    """Make a reservation that the deployment's range has room for. Waits for a running tick.

    Raises NotFound for the deployment, ReservationRefused.
    """
    if "\0" in wanted.deployment:  # PostgreSQL refuses to compare with it
        raise NotFound("deployment", wanted.deployment)
    reconciler.lock(wait=True)
    rows = Deployment.objects.select_for_update(no_key=True, of=("self",)).select_related("revision__model")
    row = rows.filter(name=wanted.deployment, archived_at=None).first()
    if row is None:
        raise NotFound("deployment", wanted.deployment)
    model = row.revision.model
    _require_callable(model, tenant)
    size = rollouts.as_wanted(row).slots_per_replica
    if wanted.slots % size:
        raise ReservationRefused(
            "slots", f"A replica of {row.name} takes {size} slots, and {wanted.slots} is no multiple.", f"Use {size}, …"
        )
    slots = wanted.slots + registry.most_slots(row.name, wanted.starts_at - registry.LEAD, wanted.ends_at)
    if (replicas := math.ceil(slots / size)) > row.max_replicas:
        raise ReservationRefused(
            "slots",
            f"With it {slots} slots of {row.name} are reserved, which are {replicas} replicas; {row.max_replicas} are"
            " allowed.",
            f"Allow more first: celery -A hearth fleet scale {row.name} {min(row.min_replicas, replicas)}-{replicas}",
        )
    return registry.reserve(actor, tenant, wanted, model.name)


def require_range(row: Deployment, most_replicas: int, now: dt.datetime) -> None:
    """Raise Refused if a maximum excludes replicas that are reserved, now or later."""
    slots = registry.most_slots(row.name, now)
    reserved = math.ceil(slots / row.slots_per_replica)
    if most_replicas < reserved:
        why = f"{slots} of its slots are reserved, for which it needs {reserved} of its replicas"
        raise Refused("deployment", row.name, why, "allow as many, or end reservations (hearth reservation list)")


def _require_callable(model: Model, tenant: Tenant) -> None:
    if model.visibility != Model.Visibility.PUBLIC and tenant.id not in {model.owner_id, *model.shared_with}:
        raise ReservationRefused(
            "deployment", f"{tenant.slug} may not call {model.name}.", "Share the model with it first."
        )
