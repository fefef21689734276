"""``hearth manage grant_role NAME``: run it as the owner of the tables, after ``migrate``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from tenants.database import rls
from workers import node_role


class Command(BaseCommand):
    """Grant the role that runs Hearth its rights on the owner's tables, and the nodes' role its few. Idempotent."""

    help = (
        "Let a role read and write the owner's tables, present and future, and read as a tenant; "
        "and give the role hearth_node, if there is one, the rights of nodes."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the role's name."""
        parser.add_argument("role", help="the role of DATABASE_URL, for example hearth_app")

    def handle(self, *args: Any, **options: Any) -> None:
        """Grant the rights."""
        rls.grant(options["role"])
        if node_role.exists():
            node_role.grant()
