"""`hearth plan`: set plans, assign them, and preview what they would change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import IO, TYPE_CHECKING

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.month_name import MonthName
from hearth.cli.on_database import on_database
from hearth.cli.output import preview_table
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from billing.plans.terms import Terms  # needs Django

_FILE = click.option(
    "-f", "--file", "file", type=click.File(encoding="utf-8"), help="The terms, YAML or JSON; - reads standard input."
)
_FROM = click.option(
    "--from",
    "from_month",
    type=MonthName(),
    required=True,
    help="First month, as YYYY-MM: the current one or later.",
)


@click.group(short_help="Set plans, assign them to tenants, preview what they cost.")
def plan() -> None:
    """Set plans, assign them to tenants, and preview what they cost.

    A plan has terms beside list prices: allowances, volume tiers, discounts, a minimum. They are charged when a month
    closes. docs/billing.md says how they are computed.

    \b
    Examples:
      hearth plan preview -f gold.yaml
      hearth plan set gold -f gold.yaml --from 2026-12
      hearth plan assign gold --tenant acme --from 2026-12
    """


@plan.command("set")
@click.argument("name")
@_FILE
@_FROM
@click.option("--tenant", metavar="SLUG", help="For this tenant only. Default: for any.")
@click.option("--currency", help="As three letters. Default: that of the tenant, else USD. It cannot be changed.")
def set_plan(
    name: str, file: IO[str] | None, from_month: tuple[int, int], tenant: str | None, currency: str | None
) -> None:
    """Set the terms of the plan NAME from a month on. Terms of a month that has begun are fixed."""
    with _changing():
        from billing.plans import registry, wording
        from tenants import audit
        from tenants.registry import find_tenant

        terms = _read(file)
        version = registry.set_terms(
            audit.shell("hearth plan"),
            name,
            terms,
            date(*from_month, 1),
            tenant=find_tenant(tenant) if tenant else None,
            currency=currency,
        )
        words = wording.sentences(terms, version.plan.currency)
    print(f"{name} from {version.from_month:%Y-%m} on:")
    print("\n".join(f"  {each}" for each in words or ("List prices alone.",)))


@plan.command("assign")
@click.argument("name", required=False)
@click.option("--none", "ends", is_flag=True, help="No plan: list prices alone.")
@click.option("--tenant", metavar="SLUG", required=True)
@_FROM
def assign_plan(name: str | None, ends: bool, tenant: str, from_month: tuple[int, int]) -> None:
    """Give a tenant the plan NAME from a month on."""
    if (name is None) != ends:
        raise click.UsageError("Give the name of a plan, or --none.")
    with _changing():
        from billing.plans import registry
        from tenants import audit
        from tenants.registry import find_tenant

        registry.assign(audit.shell("hearth plan"), find_tenant(tenant), name, date(*from_month, 1))
    print(f"{tenant} has {'no plan' if name is None else f'the plan {name}'} from {date(*from_month, 1):%Y-%m} on.")


@plan.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_plans(as_json: bool) -> None:
    """List the plans, and which tenants have them from which month on."""
    with on_database("The plans cannot be read"):
        from billing.plans import registry

        rows = [
            (
                each.plan.name,
                each.plan.currency,
                each.only_for,
                ", ".join(f"{version.from_month:%Y-%m}" for version in reversed(each.versions)),
                ", ".join(f"{slug} ({month:%Y-%m})" for slug, month in each.tenants),
            )
            for each in registry.listed()
        ]
    heads = ("NAME", "CURRENCY", "ONLY FOR", "TERMS FROM", "TENANTS")
    if as_json:
        keys = [head.lower().replace(" ", "_") for head in heads]
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return
    print(table(heads, rows))


@plan.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print the versions' documents as JSON.")
def show_plan(name: str, as_json: bool) -> None:
    """Show the terms of the plan NAME, the latest first."""
    with on_database("The plan cannot be read"):
        from billing.plans import registry, terms, wording

        found = registry.find(name)
        versions = registry.versions(found)
        texts = [wording.sentences(terms.read(each.terms), found.currency) for each in versions]
    if as_json:
        documents = [{"from_month": f"{each.from_month:%Y-%m}", "terms": each.terms} for each in versions]
        print(json.dumps(documents, indent=2))
        return
    for version, words in zip(versions, texts, strict=True):
        print(f"From {version.from_month:%Y-%m} on:")
        print("\n".join(f"  {each}" for each in words or ("List prices alone.",)))


@plan.command("schema")
def schema() -> None:
    """Print the JSON schema of terms."""
    with on_database("The schema cannot be read"):
        from billing.plans import terms

        print(json.dumps(terms.json_schema(), indent=2))


@plan.command("preview")
@click.argument("name", required=False)
@_FILE
@click.option("--currency", default="USD", show_default=True, help="Of the amounts in a file.")
@click.option("--tenant", "slugs", metavar="SLUG", multiple=True, help="Only this tenant's. Repeatable. Default: all.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def preview(name: str | None, file: IO[str] | None, currency: str, slugs: tuple[str, ...], as_json: bool) -> None:
    """Show what each tenant's last month would have cost with the plan NAME, or with the terms of a file.

    Nothing is changed.
    """
    if (name is None) == (file is None):
        raise click.UsageError("Give the name of a plan, or --file.")
    with _changing():
        from django.utils import timezone

        from billing.months import previews
        from billing.plans import registry
        from tenants.registry import find_tenant

        if name is None:
            terms = _read(file)
        else:
            found = registry.latest(name)
            terms, currency = found.terms, found.currency
        now = timezone.now()
        tenants = [find_tenant(slug) for slug in slugs] or previews.billed_tenants(now)
        rows = [preview_table.cells(each) for each in previews.of_terms(terms, currency, tenants, now)]
    print(json.dumps(preview_table.as_json(rows), indent=2) if as_json else table(preview_table.HEADS, rows))


def _read(file: IO[str] | None) -> Terms:
    """Return the terms in a file. Raises PreflightError."""
    from portal import plan_terms
    from portal.fleet.document.reading import BadDocument

    if file is None:
        raise click.UsageError("Give --file, with the terms; `hearth plan schema` prints what it may contain.")
    try:
        return plan_terms.read(file.read())
    except BadDocument as error:
        raise PreflightError(f"{file.name}: {error}", "") from error
    except UnicodeDecodeError as error:
        raise PreflightError(f"{file.name} is no UTF-8 text.", "") from error


@contextmanager
def _changing() -> Iterator[None]:
    """Run the block with the database. Raises PreflightError for what is refused."""
    with on_database("Nothing was changed"):
        from billing.errors import PlanRefused

        try:
            yield
        except PlanRefused as error:
            raise PreflightError(str(error), "") from error
