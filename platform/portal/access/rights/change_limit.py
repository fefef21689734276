"""How often one tenant may change something through the API and the pages: every change is read by every gateway."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.core.cache.backends.locmem import LocMemCache
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from portal.access.principal import Principal

if TYPE_CHECKING:  # REST framework imports this module while it imports its views
    from rest_framework.views import APIView

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
MINUTE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What the limit reads of a page's request; a request of REST framework has the same fields."""

    method: str | None
    auth: Principal


class ChangeLimit(SimpleRateThrottle):
    """A bound on changes a minute, for all keys of a tenant together and for each member. Operators are exempt.

    Refused requests count as well when they are authenticated. A member has one count for the API and the pages.
    Counted in this process, of which a portal has one, so that the limit holds while Redis is unavailable.
    """

    rate = "240/min"
    #: More entries than tenants that change something within a minute; beyond them some counts begin again.
    cache = LocMemCache("changes", {"OPTIONS": {"MAX_ENTRIES": 10_000}})

    def get_cache_key(self, request: Request | PageRequest, view: APIView | None) -> str | None:
        """Return the name of the count; None if the request is not limited."""
        who = request.auth
        if request.method in SAFE_METHODS or not isinstance(who, Principal) or who.is_operator:
            return None
        if who.key is not None:
            return f"tenant:{who.key.tenant_id}"
        return f"user:{who.actor.name}"


def count_page(request: PageRequest) -> int | None:
    """Count a request to a page; return None if it may go on, else in how many seconds the next may."""
    limit = ChangeLimit()
    if limit.allow_request(request, None):  # type: ignore[arg-type]  # it reads no more than the two fields
        return None
    return max(1, math.ceil(limit.wait() or MINUTE_SECONDS))
