"""How often one tenant may change something through ``/api/v1/``: every change is read by every gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.cache.backends.locmem import LocMemCache
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from portal.access.principal import Principal

if TYPE_CHECKING:  # REST framework imports this module while it imports its views
    from rest_framework.views import APIView

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class ChangesOfTenant(SimpleRateThrottle):
    """At most so many changes a minute by all keys of a tenant together, and by each member. Operators are exempt.

    Refused requests count as well when they are authenticated. Counted in this process, of which a portal has one, so
    that the limit holds while Redis is unavailable.
    """

    rate = "240/min"
    #: More entries than tenants that change something within a minute; beyond them some counts begin again.
    cache = LocMemCache("changes", {"OPTIONS": {"MAX_ENTRIES": 10_000}})

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        """Return the name of the count; None if the request is not limited."""
        who = request.auth
        if request.method in SAFE_METHODS or not isinstance(who, Principal) or who.is_operator:
            return None
        if who.key is not None:
            return f"tenant:{who.key.tenant_id}"
        return f"user:{who.actor.name}"
