"""`hearth check`: what an operator must change before the instance is reachable by strangers."""

from __future__ import annotations

import sys

import click

from hearth.checks import deployment
from hearth.instance.instance import from_environment


@click.command(short_help="Show what must change before others may reach this instance.")
@click.option("--deploy", is_flag=True, required=True, help="Check what a deployment must not have.")
def check(deploy: bool) -> None:
    """Check settings, secrets, folders, the engines that run here, and the rights in PostgreSQL and Redis.

    Prints what must not be so where strangers can reach the instance, each with what to do. Changes nothing. The exit
    status is 1 when something is found.
    """
    found = deployment.findings(from_environment())
    for number, each in enumerate(found, 1):
        print(f"{number}. {each.problem}\n   {each.remedy}")
    print(f"\n{len(found)} to fix before strangers may reach this." if found else "Nothing found.")
    sys.exit(1 if found else 0)
