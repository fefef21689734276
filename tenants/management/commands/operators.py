"""``hearth manage operators list|set|remove …``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants import audit, error_text
from tenants.errors import TenantError
from tenants.models import User
from tenants.people import operators


class Command(BaseCommand):
    """List the operators, give a person an operator's role, or take it away. Each change is audited."""

    help = "List the operators, give a person an operator's role, or take it away."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the actions and their arguments."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        actions.add_parser("list", help="list the operators and their roles")
        giving = actions.add_parser("set", help="make a person an operator, or change an operator's role")
        taking = actions.add_parser("remove", help="take all rights of an operator from a person")
        for action in (giving, taking):
            action.add_argument("person", help="the person's sign-in name; set creates an unknown person")
        giving.add_argument("role", choices=User.OperatorRole.values, help="what the person may change")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the action."""
        try:
            self._act(options)
        except TenantError as error:
            raise CommandError(error_text.words(error)) from None

    def _act(self, options: dict[str, Any]) -> None:
        actor = audit.shell("hearth manage operators")
        if options["action"] == "list":
            for user in operators.every():
                self._print(user)
        elif options["action"] == "set":
            self._print(operators.put(actor, options["person"], options["role"]))
        else:
            operators.remove(actor, options["person"])
            self.stdout.write(f"{options['person']} is not an operator any more.")

    def _print(self, user: User) -> None:
        name = user.get_username()
        password = "" if user.has_usable_password() else f"  no password yet: hearth manage changepassword {name}"
        self.stdout.write(f"{name:<24} {user.operator_role}{password}")
