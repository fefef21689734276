"""`hearth webhook`: where events are sent, and what came of it."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from notifications.models import WebhookEndpoint  # its models need Django
    from tenants.audit import Actor

#: As ``notifications.webhooks.endpoints`` has it, which needs Django.
OVERLAP_HOURS = click.IntRange(0, 168)
MOST_SHOWN = 50
MOMENTS = click.DateTime(["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"])
TENANT = click.option("--tenant", default="", metavar="SLUG", help="A tenant's. Without it: the operators' own.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("webhook", short_help="Send events to other systems, see what came of it, send again.")
def webhook() -> None:
    """Manage webhook endpoints. docs/operations/notifications.md says what is sent and how receivers check it.

    \b
    Examples:
      hearth webhook create https://example.com/hook > secret.txt
      hearth webhook create https://example.com/hook --tenant acme --type hearth.budget_threshold.reached.v1
      hearth webhook test 0195c2a4-7d11-7c30-8e6f-5d1f3f3a9b10
      hearth webhook log 0195c2a4-7d11-7c30-8e6f-5d1f3f3a9b10
      hearth webhook replay 0195c2a4-7d11-7c30-8e6f-5d1f3f3a9b10 --since 2026-11-24
    """


@webhook.command(short_help="Create an endpoint and print its secret.")
@click.argument("url")
@TENANT
@click.option("--type", "types", multiple=True, help="An event type that it gets; may be repeated. Without it: all.")
@click.option("--about", default="", help="What it is for.")
def create(url: str, tenant: str, types: tuple[str, ...], about: str) -> None:
    """Create an endpoint for the events from now on. Its secret is printed on standard output, only now."""
    with on_database("No endpoint was created"):
        from notifications.webhooks import endpoints
        from tenants import registry

        owner = registry.find_tenant(tenant) if tenant else None
        made = endpoints.create(_actor(), owner, url=url, about=about, types=types)
    click.echo(made.secret)
    click.echo(f"Endpoint {made.endpoint.id} is created. Its secret is shown only now.", err=True)


@webhook.command("list", short_help="List the endpoints.")
@TENANT
@AS_JSON
def list_endpoints(tenant: str, as_json: bool) -> None:
    """List the endpoints of a tenant, or the operators', without their secrets."""
    with on_database("The endpoints cannot be listed"):
        from notifications.webhooks import endpoints
        from tenants import registry

        owner = registry.find_tenant(tenant) if tenant else None
        rows: list[dict[str, Any]] = [
            {
                "id": str(each.id),
                "url": each.url,
                "state": endpoints.state_of(each),
                "event_types": list(each.event_types),
                "about": each.about,
            }
            for each in endpoints.of(owner)
        ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    cells = [(row["id"], row["state"], " ".join(row["event_types"]) or "all", row["url"]) for row in rows]
    click.echo(table(("ENDPOINT", "STATE", "EVENT TYPES", "URL"), cells))


@webhook.command(short_help="List the types of events.")
def types() -> None:
    """List the types of events and what each means."""
    with on_database("The types cannot be listed"):
        from notifications.event_types import EVENT_TYPES

        rows = [(each.name, each.about) for each in EVENT_TYPES]
    click.echo(table(("TYPE", "MEANS"), rows))


@webhook.command("log", short_help="Show what was sent and what came back.")
@click.argument("endpoint", type=click.UUID)
@click.option("--state", type=click.Choice(["pending", "delivered", "dead"]), help="Only deliveries in this state.")
@AS_JSON
def show_log(endpoint: UUID, state: str | None, as_json: bool) -> None:
    """Show the newest 50 deliveries of an endpoint, with the last attempt of each."""
    with on_database("The log cannot be shown"):
        from notifications.webhooks import deliveries

        found = deliveries.of(_endpoint(endpoint), [state] if state else ()).prefetch_related("log")[:MOST_SHOWN]
        rows = [_row(each) for each in found]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    names = ("delivery", "type", "state", "attempts", "last_attempt", "status", "ms", "error")
    cells = [tuple("" if row[name] is None else str(row[name]) for name in names) for row in rows]
    click.echo(table(("DELIVERY", "TYPE", "STATE", "ATTEMPTS", "LAST ATTEMPT", "STATUS", "MS", "ERROR"), cells))


@webhook.command(short_help="Send a test event.")
@click.argument("endpoint", type=click.UUID)
def test(endpoint: UUID) -> None:
    """Send the endpoint a test event; `hearth webhook log` says what came of it."""
    with on_database("Nothing was sent"):
        from notifications.webhooks import deliveries

        deliveries.test(_actor(), _endpoint(endpoint))
    click.echo(f"A test is sent within seconds. See: hearth webhook log {endpoint}")


@webhook.command(short_help="Give an endpoint a new secret and print it.")
@click.argument("endpoint", type=click.UUID)
@click.option("--overlap-hours", type=OVERLAP_HOURS, default=24, show_default=True, help="How long both secrets sign.")
def rotate(endpoint: UUID, overlap_hours: int) -> None:
    """Give the endpoint a new secret and print it, only now. The one before signs too for a while."""
    with on_database("The secret was not rotated"):
        from notifications.webhooks import endpoints

        made = endpoints.rotate(_actor(), _endpoint(endpoint), overlap_hours=overlap_hours)
    click.echo(made.secret)
    click.echo(f"The secret before signs for {overlap_hours} more hours.", err=True)


@webhook.command(short_help="Change the URL or the types of an endpoint.")
@click.argument("endpoint", type=click.UUID)
@click.option("--url", help="Where to send from now on.")
@click.option("--type", "types", multiple=True, help="An event type that it gets; replaces those of before.")
@click.option("--all-types", is_flag=True, help="It gets events of every type.")
@click.option("--about", help="What it is for.")
def change(endpoint: UUID, url: str | None, types: tuple[str, ...], all_types: bool, about: str | None) -> None:
    """Change an endpoint. Deliveries that wait go to the new URL."""
    if types and all_types:
        raise click.UsageError("Give --type or --all-types, not both.")
    changes: dict[str, Any] = {"url": url, "about": about, "event_types": list(types) if types or all_types else None}
    with on_database("Nothing was changed"):
        from notifications.webhooks import endpoints

        wanted = {name: value for name, value in changes.items() if value is not None}
        found = endpoints.change(_actor(), _endpoint(endpoint), **wanted)
    click.echo(f"Endpoint {found.id}: {found.url}, {' '.join(found.event_types) or 'all types'}.")


@webhook.command(short_help="Send nothing to an endpoint for a while.")
@click.argument("endpoint", type=click.UUID)
def pause(endpoint: UUID) -> None:
    """Send nothing until it is resumed. Deliveries wait."""
    with on_database("Nothing was changed"):
        from notifications.webhooks import endpoints

        endpoints.change(_actor(), _endpoint(endpoint), is_paused=True)
    click.echo("Paused: its deliveries wait.")


@webhook.command(short_help="Send to an endpoint again.")
@click.argument("endpoint", type=click.UUID)
def resume(endpoint: UUID) -> None:
    """Send again to an endpoint that was paused, or disabled after long failure."""
    with on_database("Nothing was changed"):
        from notifications.webhooks import endpoints

        endpoints.resume(_actor(), _endpoint(endpoint))
    click.echo("Resumed: what waited is sent now.")


@webhook.command(short_help="Send events again.")
@click.argument("endpoint", type=click.UUID)
@click.option("--delivery", type=click.UUID, help="One delivery.")
@click.option("--since", type=MOMENTS, help="Every event from this moment (UTC) on that the endpoint has chosen.")
@click.option("--until", type=MOMENTS, help="Up to this moment, exclusive. Without it: up to now.")
def replay(endpoint: UUID, delivery: UUID | None, since: dt.datetime | None, until: dt.datetime | None) -> None:
    """Send one delivery, or every event of a range, again, whatever came of them before."""
    if (delivery is None) == (since is None):
        raise click.UsageError("Give either --delivery or --since.")
    with on_database("Nothing is sent again"):
        from notifications.webhooks import deliveries

        found, count = _endpoint(endpoint), 1
        if delivery is not None:
            deliveries.replay(_actor(), found, delivery)
        elif since is not None:
            end = dt.datetime.now(dt.UTC) if until is None else until.replace(tzinfo=dt.UTC)
            count = deliveries.replay_between(_actor(), found, since.replace(tzinfo=dt.UTC), end)
    click.echo(f"{count} events are sent again.")


@webhook.command(short_help="Remove an endpoint.")
@click.argument("endpoint", type=click.UUID)
def remove(endpoint: UUID) -> None:
    """Remove an endpoint with its deliveries and their log."""
    with on_database("Nothing was removed"):
        from notifications.webhooks import endpoints

        endpoints.remove(_actor(), _endpoint(endpoint))
    click.echo("Removed.")


def _actor() -> Actor:
    from tenants import audit

    return audit.shell("hearth webhook")


def _endpoint(endpoint_id: UUID) -> WebhookEndpoint:
    from notifications.webhooks import endpoints

    return endpoints.find_any(endpoint_id)


def _row(delivery: Any) -> dict[str, Any]:
    last = max(delivery.log.all(), key=lambda attempt: attempt.id, default=None)
    return {
        "delivery": str(delivery.id),
        "event": str(delivery.event_id),
        "type": delivery.event.type,
        "state": delivery.state,
        "attempts": delivery.attempts,
        "last_attempt": None if last is None else f"{last.began_at:%Y-%m-%d %H:%M:%S}",
        "status": None if last is None else last.status,
        "ms": None if last is None else last.duration_ms,
        "error": "" if last is None else last.error,
    }
