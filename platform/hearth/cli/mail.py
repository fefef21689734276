"""`hearth mail`: try the server for e-mails, and see what was sent or why not."""

from __future__ import annotations

import json
from smtplib import SMTPException

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

MOST_SHOWN = 50


@click.group("mail", short_help="Try e-mails, and see what was sent or why not.")
def mail() -> None:
    """E-mails about events, to members of tenants by role and to operators.

    HEARTH_EMAIL_URL names the server. docs/operations/notifications.md says who gets what.

    \b
    Examples:
      hearth mail test ada@example.com
      hearth mail log
    """


@mail.command(short_help="Send one e-mail now.")
@click.argument("address")
def test(address: str) -> None:
    """Send a test to the address now, with the settings that this command has."""
    with on_database("No e-mail was sent"):
        from django.conf import settings

        from notifications.mail import sending

        if not settings.EMAIL_IS_SENT:
            raise PreflightError(
                "HEARTH_EMAIL_URL is not set.", "Set it to smtp://user:password@host:587, for example."
            )
        if "@" not in address or any(character.isspace() for character in address):
            raise PreflightError(f"{address!r} is not an e-mail address.", "Give one such as ada@example.com.")
        try:
            sending.test(address)
        except (OSError, SMTPException, ValueError) as error:
            problem = f"The server did not take it: {type(error).__name__}: {error}."
            raise PreflightError(problem, "Check HEARTH_EMAIL_URL and HEARTH_EMAIL_FROM.") from error
    click.echo(f"The server took an e-mail to {address}.")


@mail.command("log", short_help="Show the newest e-mails, and why some were not sent.")
@click.option("--state", type=click.Choice(["pending", "sent", "skipped", "failed"]), help="Only those in this state.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_log(state: str | None, as_json: bool) -> None:
    """Show the newest 50 e-mails of the last 30 days."""
    with on_database("The e-mails cannot be shown"):
        from notifications.models import Mail

        found = Mail.objects.select_related("event").order_by("-id")
        rows = [
            {
                "created_at": f"{each.created_at:%Y-%m-%d %H:%M}",
                "address": each.address,
                "type": each.event.type,
                "state": each.state,
                "note": each.note,
            }
            for each in (found.filter(state=state) if state else found)[:MOST_SHOWN]
        ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo(table(("CREATED", "TO", "TYPE", "STATE", "NOTE"), [tuple(row.values()) for row in rows]))
