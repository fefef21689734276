"""`hearth alerts`: what needs an operator."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table


@click.command(short_help="Show what needs an operator.")
@click.option("--all", "show_all", is_flag=True, help="Also alerts that were resolved in the last 30 days.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def alerts(context: click.Context, show_all: bool, as_json: bool) -> None:
    """Show the open alerts, the newest first. Exit status 1 if there is one.

    The role background computes them every 30 seconds. docs/operations/notifications.md says when each is raised, and
    how to have them sent by webhook or e-mail.
    """
    with on_database("The alerts cannot be shown"):
        from alerting import open_alerts

        found = open_alerts.newest(is_open=None if show_all else True)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=2, default=str))
    elif not found:
        click.echo("No alert.")
    else:
        rows = [
            (
                "resolved" if each.resolved_at else each.severity,
                each.kind,
                f"{each.raised_at:%Y-%m-%d %H:%M}",
                each.summary,
                "" if each.resolved_at else each.action,
            )
            for each in found
        ]
        click.echo(table(("STATE", "KIND", "SINCE", "WHAT", "WHAT TO DO"), rows))
    if any(each.resolved_at is None for each in found):
        context.exit(1)
