"""`hearth usage`: the partitions of the usage table, and the files of those that were retired."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from billing.models import UsageExport  # its models need Django

MIB = 1 << 20


@click.group(short_help="Show the partitions of usage, and the files of retired ones.")
def usage() -> None:
    """Show how requests are stored: in partitions by day, and in the files of days that were retired.

    `hearth retention` says how long they are kept. docs/operations/usage.md, How long records are kept, says more.
    """


@usage.command("partitions")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_partitions(as_json: bool) -> None:
    """Show every partition, oldest first, with an estimate of its rows and its size.

    `default` has requests of days that have no partition yet. They move there within an hour.
    """
    with on_database("The partitions cannot be read"):
        from retention import partition_list

        found = partition_list.read()
    if as_json:
        print(json.dumps([asdict(each) for each in found], indent=2, default=str))
        return
    rows = [(each.name, "" if each.rows is None else f"{each.rows:,}", f"{each.bytes / MIB:,.1f}") for each in found]
    print(table(("PARTITION", "ROWS, ABOUT", "MIB"), rows))


@usage.command("exports")
@click.option("--verify", is_flag=True, help="Read the files that this machine wrote and compare their SHA-256.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def list_exports(context: click.Context, verify: bool, as_json: bool) -> None:
    """Show the files of retired days, oldest first: CSV with a header, in gzip.

    With --verify the exit status is 1 if a file of this machine is missing or was changed.
    """
    with on_database("The exports cannot be read"):
        from django.conf import settings

        from billing.models import UsageExport
        from retention import usage_export

        found = list(UsageExport.objects.order_by("begins_at", "id"))
        own = [each for each in found if verify and each.node == settings.NODE_NAME]
        faults = {each.id: usage_export.fault(each) for each in own}
    documents = [_document(each) | ({"fault": faults.get(each.id)} if verify else {}) for each in found]
    if as_json:
        print(json.dumps(documents, indent=2, default=str))
    else:
        headings = ("BEGINS", "ENDS", "ROWS", "MIB", "RETIRED", "HOST", "FILE")
        print(table(headings, [_cells(each) for each in found]))
        for line in filter(None, faults.values()):
            print(f"fault: {line}")
        if verify:
            print(f"{len(own)} of {len(found)} files were read here; {sum(map(bool, faults.values()))} have a fault.")
    if any(faults.values()):
        context.exit(1)


def _document(each: UsageExport) -> dict[str, Any]:
    names = ("partition", "begins_at", "ends_at", "rows", "file_bytes", "sha256", "node", "path", "created_at")
    return {name: getattr(each, name) for name in (*names, "retired_at")}


def _cells(each: UsageExport) -> tuple[str, ...]:
    retired = "" if each.retired_at is None else f"{each.retired_at:%Y-%m-%d %H:%M}"
    days = (f"{moment:%Y-%m-%d}" for moment in (each.begins_at, each.ends_at))
    return (*days, f"{each.rows:,}", f"{each.file_bytes / MIB:,.1f}", retired, each.node, each.path)
