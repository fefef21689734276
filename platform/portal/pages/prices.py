"""What is charged, from when on."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from billing.models import PriceVersion
from portal.access.principal import Principal
from portal.pages.base import operator_page, show

#: Versions shown, newest first.
MAX_ROWS = 200


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show every price version, the one in force of each model and book marked."""
    versions = list(PriceVersion.objects.select_related("book").order_by("-effective_from", "-id")[:MAX_ROWS])
    context = {"rows": _states(versions, timezone.now())}
    return show(request, principal, "portal/prices.html", context, active="prices")


def _states(versions: list[PriceVersion], now: datetime) -> list[tuple[PriceVersion, str]]:
    """Say of each version, newest first, whether it is to come, in force or past."""
    in_force: set[tuple[object, str]] = set()
    states: list[tuple[PriceVersion, str]] = []
    for version in versions:
        where = (version.book_id, version.model_name)
        if version.effective_from > now:
            states.append((version, "to come"))
        else:
            states.append((version, "past" if where in in_force else "in force"))
            in_force.add(where)
    return states
