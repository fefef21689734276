"""``hearth manage operators list|set|remove|break-glass|provider-only …``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants import audit, error_text
from tenants.audit import Actor
from tenants.errors import TenantError
from tenants.identity import operator_sign_in
from tenants.models import User
from tenants.people import operators


class Command(BaseCommand):
    """List and change the operators, and say how they sign in. Each change is audited."""

    help = "List and change the operators, and say how they sign in."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the actions and their arguments."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        actions.add_parser("list", help="list the operators and their roles")
        giving = actions.add_parser("set", help="make a person an operator, or change an operator's role")
        taking = actions.add_parser("remove", help="take all rights of an operator from a person")
        for action in (giving, taking):
            action.add_argument("person", help="the person's sign-in name; set creates an unknown person")
        glass = actions.add_parser("break-glass", help="make the operator for the day on which the provider is down")
        glass.add_argument("name", nargs="?", default="break-glass", help="the sign-in name (default: break-glass)")
        glass.add_argument("--remove", action="store_true", help="take all rights from the one there is")
        only = actions.add_parser("provider-only", help="let operators sign in through their provider only")
        only.add_argument("value", choices=("on", "off"))
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
        elif options["action"] == "break-glass":
            self._break_glass(actor, options)
        elif options["action"] == "provider-only":
            operator_sign_in.set_provider_only(actor, options["value"] == "on")
            ways = "their provider only" if options["value"] == "on" else "their provider or with a password"
            self.stdout.write(f"Operators sign in through {ways}.")
        else:
            operators.remove(actor, options["person"])
            self.stdout.write(f"{options['person']} is not an operator any more.")

    def _break_glass(self, actor: Actor, options: dict[str, Any]) -> None:
        if options["remove"]:
            self.stdout.write(f"{operator_sign_in.remove_break_glass(actor)} cannot sign in any more.")
            return
        sealed = operator_sign_in.make_break_glass(actor, options["name"])
        self.stdout.write(
            f"name            {sealed.name}\npassword        {sealed.password}\n"
            f"app's secret    {sealed.totp_secret}\nrecovery codes  {' '.join(sealed.recovery_codes)}\n\n"
            "Shown once. Keep it sealed, and not behind the provider. Sign in with it now and add a passkey under "
            "Account, Second factor: that sign-in raises an alert too."
        )

    def _print(self, user: User) -> None:
        name = user.get_username()
        password = "" if user.has_usable_password() else f"  no password yet: hearth manage changepassword {name}"
        self.stdout.write(f"{name:<24} {user.operator_role}{password}")
