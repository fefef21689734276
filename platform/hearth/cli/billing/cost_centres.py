"""`hearth cost-centre`: set the cost centre of a tenant or project, and show all."""

from __future__ import annotations

import json

import click

from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table


@click.group(short_help="Set and show cost centres of tenants and projects.")
def cost_centre() -> None:
    """Set and show cost centres, by which reports divide what usage costs.

    A project without one has its tenant's. docs/operations/usage.md, Cost centres, says more.

    \b
    Examples:
      hearth cost-centre set CC-4711 --tenant acme
      hearth cost-centre set CC-0815 --tenant acme --project research
      hearth cost-centre list
    """


@cost_centre.command("set")
@click.argument("code")
@click.option("--tenant", "slug", metavar="SLUG", required=True, help="The tenant.")
@click.option("--project", metavar="SLUG", help="Of this project only. Default: of the tenant.")
def set_cost_centre(code: str, slug: str, project: str | None) -> None:
    """Set the cost centre CODE; "" sets none.

    Reports use it for usage of any time; the journal and the FOCUS export of a closed month keep the one that it had.
    """
    with on_database("Nothing was changed"):
        from tenants import audit, cost_centres
        from tenants.errors import NotFound
        from tenants.models import Project
        from tenants.registry import find_tenant

        actor, tenant = audit.shell("hearth cost-centre"), find_tenant(slug)
        if project is None:
            changed = cost_centres.set_of_tenant(actor, tenant, code).cost_centre
        else:
            found = Project.objects.filter(tenant=tenant, slug=project).first()
            if found is None:
                raise NotFound("project", project)
            changed = cost_centres.set_of_project(actor, found, code).cost_centre
    print(f"{slug if project is None else f'{slug}/{project}'}: {changed or 'no cost centre of its own'}")


@cost_centre.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_cost_centres(as_json: bool) -> None:
    """Show the cost centre of each project, its own or its tenant's."""
    with on_database("The cost centres cannot be read"):
        from tenants.models import Project

        names = ("tenant__slug", "slug", "cost_centre", "tenant__cost_centre")
        rows = list(Project.objects.order_by("tenant__slug", "slug").values_list(*names))
    if as_json:
        keys = ("tenant", "project", "cost_centre", "inherited")
        cells = [(tenant, project, own or tenants, not own) for tenant, project, own, tenants in rows]
        print(json.dumps([dict(zip(keys, each, strict=True)) for each in cells], indent=2))
        return
    shown = [(tenant, project, own or tenants, "" if own else "tenant's") for tenant, project, own, tenants in rows]
    print(table(("TENANT", "PROJECT", "COST CENTRE", "FROM"), shown))
