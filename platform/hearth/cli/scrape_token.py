"""`hearth scrape-token`: tokens with which Prometheus finds what to scrape."""

from __future__ import annotations

import json
from uuid import UUID

import click

from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

#: As ``tenants.keys.scrape_tokens`` has them, which needs Django.
DAYS = click.IntRange(1, 1830)


@click.group("scrape-token", short_help="Make, list and revoke tokens for Prometheus.")
def scrape_token() -> None:
    """Manage the tokens with which Prometheus finds what to scrape (`GET /api/v1/fleet/targets`).

    They open that list and nothing else, and stay valid when the operator who made them leaves.

    \b
    Examples:
      hearth scrape-token create prometheus > /etc/prometheus/hearth-token
      hearth scrape-token list
      hearth scrape-token revoke 0195c2a4-7d11-7c30-8e6f-5d1f3f3a9b10
    """


@scrape_token.command(short_help="Make a token and print it.")
@click.argument("name")
@click.option("--days", type=DAYS, default=366, show_default=True, help="Days until it expires.")
def create(name: str, days: int) -> None:
    """Make a token and print it on standard output, only now."""
    with on_database("No token was made"):
        from tenants import audit
        from tenants.keys import scrape_tokens

        issued = scrape_tokens.issue(audit.shell("hearth scrape-token"), name=name, days=days)
    click.echo(issued.secret)
    click.echo(f"Token {issued.token.id}, valid until {issued.token.expires_at:%Y-%m-%d %H:%M} UTC.", err=True)


@scrape_token.command("list", short_help="List the tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_tokens(as_json: bool) -> None:
    """List the newest 50 tokens, ended ones too, without their secrets."""
    with on_database("The tokens cannot be listed"):
        from tenants.keys import scrape_tokens

        rows = [
            (str(each.id), each.name, scrape_tokens.state_of(each), f"{each.expires_at:%Y-%m-%d}", each.created_by)
            for each in scrape_tokens.newest()
        ]
    if as_json:
        names = ("id", "name", "state", "expires_on", "created_by")
        click.echo(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
        return
    click.echo(table(("TOKEN", "NAME", "STATE", "EXPIRES", "MADE BY"), rows))


@scrape_token.command(short_help="Revoke a token.")
@click.argument("token", type=click.UUID)
def revoke(token: UUID) -> None:
    """Revoke a token. Prometheus then finds nothing with it, and goes on with what it found before."""
    with on_database("Nothing was revoked"):
        from tenants import audit
        from tenants.keys import scrape_tokens

        name = scrape_tokens.revoke(audit.shell("hearth scrape-token"), token).name
    click.echo(f"Token {name} is revoked.")
