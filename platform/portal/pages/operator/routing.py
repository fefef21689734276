"""How good routing is: why replicas were chosen, predicted against actual cached tokens, and whether sessions stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.http import require_GET

from billing.errors import TooManyRequests
from billing.reports import routing_quality
from billing.reports.routing_quality import RoutingGroup
from portal.access.principal import Principal
from portal.errors import BadQuery
from portal.formats.numbers import short_id
from portal.pages.base import operator_page, period_of, show
from portal.pages.usage import presets
from portal.reporting.requests import routing_decisions
from portal.reporting.requests.request_timeline import ROUTE_REASONS
from workers.models import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a table: its name, what more there is to say, its requests' share of all, and their list."""

    name: str
    detail: str = ""
    group: RoutingGroup
    share: float
    link: str


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the routing of a period."""
    period = period_of(request)
    try:
        found = routing_quality.read(period)
    except TooManyRequests as error:
        raise BadQuery("period", request.GET.get("period", period.label), error.allowed) from None
    total, requests = found.total, f"{reverse('portal:requests')}?{period.query}"

    def row(group: RoutingGroup, name: str, detail: str = "", **filters: str) -> Row:
        share = group.requests / total.requests if total.requests else 0.0
        return Row(name=name, detail=detail, group=group, share=share, link=f"{requests}&{urlencode(filters)}")

    places = _places([each.replica_id for each in found.by_replica if each.replica_id is not None])
    context = {
        "period": period,
        "periods": presets(request, period),
        "total": total,
        "stickiness": routing_decisions.stickiness(),
        "by_reason": [
            row(each, each.reason, ROUTE_REASONS.get(each.reason, ""), route=each.reason) for each in found.by_reason
        ],
        "by_model": [row(each, each.model, model=each.model) for each in found.by_model],
        "by_replica": [
            row(each, f"…{short_id(each.replica_id)}", places.get(each.replica_id, ""), replica=str(each.replica_id))
            for each in found.by_replica
        ],
    }
    return show(request, principal, "portal/routing.html", context, active="routing")


def _places(replica_ids: Sequence[UUID]) -> dict[UUID | None, str]:
    """Return what each of these replicas is, where, and in which state."""
    rows = Replica.objects.filter(id__in=replica_ids).select_related("deployment", "node")
    return {
        each.id: gettext("%(deployment)s on %(node)s, %(state)s")
        % {
            "deployment": each.deployment.name,
            "node": each.node.name if each.node else gettext("no node"),
            "state": gettext(each.state),
        }
        for each in rows
    }
