"""`hearth apply`: make the fleet what a file says."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import IO

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.on_database import on_database


@click.command(short_help="Make pools, models and deployments what a file says.")
@click.option("-f", "--file", "file", type=click.File(encoding="utf-8"), help="YAML or JSON; - reads standard input.")
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option("--prune", is_flag=True, help="Archive the platform's models that the file does not name.")
@click.option("--confirm-prices", is_flag=True, help="Allow changes of prices of more than tenfold.")
@click.option("--export", is_flag=True, help="Print the file of the fleet as it is.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of such files.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON.")
def apply(
    file: IO[str] | None,
    dry_run: bool,
    prune: bool,
    confirm_prices: bool,
    export: bool,
    schema: bool,
    as_json: bool,
) -> None:
    """Make the fleet what a file says: pools, models with prices, deployments, adapters. All of it changes, or nothing.

    What the file leaves out of an entry has its default (--schema says which), except for prices, which stay. Entries
    that it does not name stay, too, unless --prune archives them: models, and adapters if the file has a list of them.
    The same file twice changes nothing.

    \b
    Examples:
      hearth apply --export > fleet.yaml
      hearth apply -f fleet.yaml --dry-run
      hearth apply -f fleet.yaml --prune
    """
    if sum((file is not None, export, schema)) != 1:
        raise click.UsageError("Give one of --file, --export and --schema.")
    with on_database("Nothing was changed"):
        from portal.fleet.document import apply as applying
        from portal.fleet.document import difference, present
        from portal.fleet.document import schema as schemas
        from portal.fleet.document.reading import BadDocument
        from tenants import audit

        if schema:
            print(json.dumps(schemas.json_schema(), indent=2))
            return
        if export:
            print(present.text(present.read()), end="")
            return
        assert file is not None
        try:
            outcome = applying.apply_text(
                audit.shell("hearth apply"), file.read(), prune=prune, dry_run=dry_run, confirm_prices=confirm_prices
            )
        except BadDocument as error:
            raise PreflightError(f"{file.name}: {error}", "") from error
        except UnicodeDecodeError as error:
            raise PreflightError(f"{file.name} is no UTF-8 text.", "") from error
    if as_json:
        print(json.dumps(asdict(outcome), indent=2))
        return
    for note in outcome.notes:
        print(f"Note: {note}")
    print(difference.text(outcome.changes))
    if dry_run and outcome.changes:
        print("Nothing was changed (--dry-run).")
