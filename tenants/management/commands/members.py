"""``hearth manage members list|set|remove TENANT …``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants import audit, members, registry
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.models import Membership, Tenant


class Command(BaseCommand):
    """List the members of a tenant, give a person a role in it, or take it from them. Each change is audited."""

    help = "List a tenant's members, give a person a role in it, or take it from them."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take what to do, and with whom."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        listing = actions.add_parser("list", help="say who is a member, and as what")
        giving = actions.add_parser("set", help="give a person a role, in place of the one they had")
        taking = actions.add_parser("remove", help="take a person's role from them")
        for action in (listing, giving, taking):
            action.add_argument("tenant", help="its slug, for example acme")
        for action in (giving, taking):
            action.add_argument("person", help="their name at sign-in; set creates who is not known yet")
        giving.add_argument("role", choices=Membership.Role.values, help="what they may do")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it."""
        try:
            self._act(registry.find_tenant(options["tenant"]), options)
        except NotFound as error:
            raise CommandError(f"There is no {error.kind} {error.name!r}.") from None
        except BadName as error:
            raise CommandError(f"{error.kind} {error.name!r}, allowed is {error.allowed}.") from None
        except NotAllowed as error:
            raise CommandError(f"{error.kind.capitalize()} {error.name} is {error.state}.") from None

    def _act(self, tenant: Tenant, options: dict[str, Any]) -> None:
        actor = audit.shell("hearth manage members")
        if options["action"] == "list":
            for member in members.of(tenant):
                self._tell(member)
        elif options["action"] == "set":
            self._tell(members.put(actor, tenant, options["person"], options["role"]))
        else:
            members.remove(actor, tenant, options["person"])
            self.stdout.write(f"{options['person']} is no member of {tenant.slug} any more.")

    def _tell(self, member: Membership) -> None:
        name = member.user.get_username()
        password = (
            "" if member.user.has_usable_password() else f"  no password yet: hearth manage changepassword {name}"
        )
        self.stdout.write(f"{name:<24} {member.role}{password}")
