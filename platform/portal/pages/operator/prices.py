"""All price versions, newest first."""

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
    """List the price versions and mark the current one of each model and book."""
    versions = list(PriceVersion.objects.select_related("book").order_by("-effective_from", "-id")[:MAX_ROWS])
    context = {"rows": _states(versions, timezone.now())}
    return show(request, principal, "portal/prices.html", context, active="prices")


def _states(versions: list[PriceVersion], now: datetime) -> list[tuple[PriceVersion, str]]:
    """Return each version with its state: scheduled, current or past. ``versions`` are newest first."""
    current: set[tuple[object, str]] = set()
    states: list[tuple[PriceVersion, str]] = []
    for version in versions:
        scope = (version.book_id, version.model_name)
        if version.effective_from > now:
            states.append((version, "scheduled"))
        else:
            states.append((version, "past" if scope in current else "current"))
            current.add(scope)
    return states
