"""`hearth reservation`: reserve slots of a deployment for a tenant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from reserved_capacity.listing import Listed  # its models need Django

HEADS = ("ID", "TENANT", "DEPLOYMENT", "SLOTS", "STATE", "FROM", "UNTIL", "SLOT HOUR", "TOKENS", "AVAILABLE")


@click.group(short_help="Reserve capacity for tenants.")
def reservation() -> None:
    """Reserve slots of a deployment for a tenant, which pays for their hours whether it uses them or not.

    Hearth keeps as many replicas, measures how far the slots were available, and charges both when a month closes.
    docs/billing/reserved-capacity.md says how.

    \b
    Examples:
      hearth reservation set --tenant acme --deployment chat --slots 4 --price 2.50 --from 2026-12
      hearth reservation list
      hearth reservation end 019ab3f2-…
    """


@reservation.command("set")
@click.option("--tenant", metavar="SLUG", required=True)
@click.option("--deployment", metavar="NAME", required=True)
@click.option("--slots", type=int, required=True, help="Slots: replicas times the slots of each.")
@click.option("--price", required=True, help="Of one slot for one hour, in units of the tenant's currency.")
@click.option("--from", "starts", required=True, help="A month as 2026-12, or a full hour as 2026-12-01T00:00Z.")
@click.option("--until", "ends", help="Likewise, not included. Default: until it is ended.")
@click.option("--tokens-per-slot-hour", type=int, default=0, show_default=True, help="Tokens that are included.")
def set_reservation(
    tenant: str, deployment: str, slots: int, price: str, starts: str, ends: str | None, tokens_per_slot_hour: int
) -> None:
    """Reserve slots of a deployment for a tenant. What has begun is fixed, but for its end."""
    with _changing():
        from reserved_capacity import reading
        from reserved_capacity.registry import Wanted
        from tenants import audit
        from tenants.registry import find_tenant
        from workers import tasks
        from workers.fleet import reserved_capacity

        owner = find_tenant(tenant)
        zone = owner.billing_timezone
        wanted = Wanted(
            deployment=deployment,
            slots=slots,
            starts_at=reading.moment("from", starts, zone),
            ends_at=reading.moment("until", ends, zone) if ends else None,
            slot_hour_pico=reading.price(price),
            tokens_per_slot_hour=tokens_per_slot_hour,
        )
        made = reserved_capacity.reserve(audit.shell("hearth reservation"), owner, wanted)
        tasks.hint(())
    until = f" until {made.ends_at:%Y-%m-%d %H:%M}" if made.ends_at else ""
    print(f"{made.id}: {slots} slots of {deployment} for {tenant} from {made.starts_at:%Y-%m-%d %H:%M}{until} UTC.")


@reservation.command("list")
@click.option("--tenant", metavar="SLUG", help="Only this tenant's.")
@click.option("--all", "with_ended", is_flag=True, help="Also those that have ended.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_reservations(tenant: str | None, with_ended: bool, as_json: bool) -> None:
    """List reservations, the newest first. AVAILABLE is the share of the last 30 days."""
    with on_database("The reservations cannot be read"):
        from reserved_capacity import listing
        from tenants.registry import find_tenant

        of = None if tenant is None else [find_tenant(tenant).id]
        rows = [_cells(each) for each in listing.read(of, with_ended=with_ended)]
    if as_json:
        keys = [head.lower().replace(" ", "_") for head in HEADS]
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return
    print(table(HEADS, rows))


@reservation.command("end")
@click.argument("reservation_id", metavar="ID", type=click.UUID)
@click.option("--at", "at", help="A month as 2026-12, or a full hour. Default: the next hour.")
def end_reservation(reservation_id: UUID, at: str | None) -> None:
    """End the reservation ID. One that has not begun is never in force."""
    with _changing():
        from reserved_capacity import reading, registry
        from reserved_capacity.models import CapacityReservation
        from tenants import audit
        from tenants.errors import NotFound

        row = CapacityReservation.objects.select_related("tenant").filter(id=reservation_id).first()
        if row is None:
            raise NotFound("reservation", str(reservation_id))
        moment = reading.moment("at", at, row.tenant.billing_timezone) if at else None
        ended = registry.end(audit.shell("hearth reservation"), reservation_id, moment)
    print(f"{ended.id} ends at {ended.ends_at:%Y-%m-%d %H:%M} UTC.")


def _cells(each: Listed) -> tuple[str, ...]:
    from billing.pricing import amounts

    row = each.reservation
    return (
        str(row.id),
        row.tenant.slug,
        row.deployment,
        str(row.slots),
        each.state,
        f"{row.starts_at:%Y-%m-%d %H:%M}",
        f"{each.ends_at:%Y-%m-%d %H:%M}" if each.ends_at else "-",
        f"{amounts.units(row.slot_hour_pico, row.currency)} {row.currency}",
        str(row.tokens_per_slot_hour),
        "-" if each.available is None else f"{each.available:.3%}",
    )


@contextmanager
def _changing() -> Iterator[None]:
    """Run the block with the database. Raises PreflightError for what is refused."""
    with on_database("Nothing was changed"):
        from reserved_capacity.errors import ReservationRefused

        try:
            yield
        except ReservationRefused as error:
            raise PreflightError(error.problem, error.remedy) from error
