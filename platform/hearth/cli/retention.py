"""`hearth retention` and `hearth erase-tenant`: how long records are kept, and the end of personal data."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from retention.preview import Due  # its models need Django

FOR_EVER = "forever"


class Kept(click.ParamType):  # type: ignore[type-arg]  # generic in its stubs only
    """A whole number, or ``forever``, which is read as None."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number, or FOR_EVER: click takes None for an option that is not given."""
        if value != FOR_EVER and not str(value).isdecimal():
            self.fail(f"{value!r} is neither a whole number nor {FOR_EVER}.", param, ctx)
        return FOR_EVER if value == FOR_EVER else int(value)


@click.command(short_help="Show or change how long records are kept.")
@click.option("--requests-months", type=Kept(), help="Rows of requests: whole months before this one, 2 to 120.")
@click.option("--events-days", type=Kept(), help="Transitions of replicas: 1 to 3650 days.")
@click.option("--decisions-days", type=Kept(), help="Decisions of scaling: 1 to 3650 days.")
@click.option("--deferred-hours", type=Kept(), help="Deferred requests that ended: 1 to 24 hours.")
@click.option("--audit-days", type=Kept(), help="The audit log: 30 to 3650 days.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def retention(as_json: bool, **given: int | str | None) -> None:
    """Show what would be deleted now because of its age, and when the oldest record that stays goes.

    Deletes nothing: the control role does that every hour. Options change the policy; `forever` keeps a kind for ever.
    The ledger, roll-ups and statements always stay. docs/operations/usage.md says what each kind covers.
    """
    changes = {name: None if value == FOR_EVER else value for name, value in given.items() if value is not None}
    with on_database("The policy is not changed" if changes else "The policy cannot be read"):
        from retention import policy, preview
        from tenants import audit

        if changes:
            policy.change(audit.shell("hearth retention"), **changes)  # type: ignore[arg-type]  # numbers, by Kept
        found = preview.read()
    if as_json:
        print(json.dumps([asdict(each) for each in found], indent=2, default=str))
        return
    print(table(("KIND", "KEPT", "GOES NOW", "OLDEST", "NEXT GOES"), [_cells(each) for each in found]))
    for line in (reason for each in found for reason in each.held):
        print(f"held: {line}")


def _cells(due: Due) -> tuple[str, ...]:
    kept = FOR_EVER if due.kept is None else f"{due.kept} {due.unit}"
    now = f"{due.rows:,} in {', '.join(due.months)}" if due.months else f"{due.rows:,}"
    moments = ("" if each is None else f"{each:%Y-%m-%d %H:%M}" for each in (due.oldest, due.next_at))
    return (due.kind, kept, now, *moments)


@click.command("erase-tenant", short_help="Erase the personal data of an archived tenant.")
@click.argument("slug")
@click.option("--confirm", metavar="SLUG", help="The slug again, instead of a question.")
def erase_tenant(slug: str, confirm: str | None) -> None:
    """Erase the personal data of an archived tenant, for good.

    Names of the tenant, its projects and keys, its members' accounts, text of its audit log, ids that its clients sent,
    deferred requests, and what it has in Redis. The ledger, usage counts and statements stay. May be repeated.
    """
    if confirm is None:
        confirm = click.prompt(f"This cannot be undone. Enter {slug} to erase its personal data", default="")
    if confirm != slug:
        raise PreflightError("Nothing was erased.", f"Confirm with the slug: {slug}.")
    with on_database("Nothing more was erased"):
        from redis import RedisError

        from retention import erasure
        from tenants import audit, registry

        tenant = registry.find_tenant(slug)
        try:
            done = erasure.erase(audit.shell("hearth erase-tenant"), tenant)
        except RedisError as error:
            raise PreflightError(
                f"Redis failed: {error}.",
                "All in the database is erased; the control role does the rest within an hour.",
            ) from error
    counts = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in asdict(done).items())
    print(f"The personal data of {slug} is erased ({counts}).")
