"""`hearth secret`: named secrets with which nodes read gated and private models on the hub."""

from __future__ import annotations

import json

import click

from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table


def first_line(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    """Return the first line of a file. Raises BadParameter if it is empty."""
    if path is None:
        return None
    with click.open_file(path) as file:
        found: str = file.readline().strip()
    if not found:
        raise click.BadParameter(f"the first line of {path} is empty.")
    return found


@click.group(short_help="Set, list and remove secrets of models.")
def secret() -> None:
    """Manage named secrets: tokens with which nodes read gated and private models on the hub.

    They are stored sealed and never shown. Several models may use one: `hearth deploy --secret`, `hearth model secret`,
    or `secret` of a model in the fleet file.

    \b
    Examples:
      hearth secret set hf-meta --file token.txt
      hearth deploy llama --source meta-llama/Llama-3.3-70B-Instruct --secret hf-meta
      hearth secret list
      hearth secret remove hf-meta
    """


@secret.command("set", short_help="Set a secret.")
@click.argument("name")
@click.option(
    "--file",
    "value",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    callback=first_line,
    metavar="FILE",
    help="Read it from the first line of FILE, - for standard input, instead of the terminal.",
)
def set_secret(name: str, value: str | None) -> None:
    """Set a secret, or replace its value. Fetches that were refused begin again at once."""
    text = value or click.prompt("Value", hide_input=True, err=True)
    with on_database("Nothing was changed"):
        from tenants import audit
        from workers.weights import secrets

        new = secrets.store(audit.shell("hearth secret"), name, text)
    print(f"{name} {'is set' if new else 'has a new value'}.")


@secret.command("list", short_help="List the secrets.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_secrets(as_json: bool) -> None:
    """List the secrets with the models that use them, without their values."""
    with on_database("The secrets cannot be listed"):
        from workers.weights import secrets

        rows = secrets.listed()
    if as_json:
        documents = [{"name": row.name, "set_at": row.set_at.isoformat(), "models": row.models} for row in rows]
        print(json.dumps(documents, indent=2))
        return
    cells = [(row.name, f"{row.set_at:%Y-%m-%dT%H:%M:%SZ}", ", ".join(row.models)) for row in rows]
    print(table(("SECRET", "SET", "MODELS"), cells))


@secret.command(short_help="Remove a secret that no model uses.")
@click.argument("name")
def remove(name: str) -> None:
    """Remove a secret. Refused while a model uses it."""
    with on_database("Nothing was changed"):
        from tenants import audit
        from workers.weights import secrets

        secrets.remove(audit.shell("hearth secret"), name)
    print(f"{name} is removed.")
