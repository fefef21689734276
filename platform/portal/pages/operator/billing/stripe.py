"""An issuer's account at Stripe: its keys, the months that are Stripe's invoices, events, and what differs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from billing.errors import BadCredit, CreditRefused, InvoiceRefused, StripeRefused, StripeUnavailable
from billing.invoices import issuers
from billing.models import CreditRequest, Issuer, StripeConnection, StripeInvoice
from billing.reports.statements import Month
from billing.stripe import comparison, connections, followups, pushing
from portal.access.principal import Principal, tenant_for
from portal.formats.table_csv import most
from portal.forms.billing.stripe import StripeForm
from portal.pages.base import operator_page, show
from portal.reporting import periods
from tenants.errors import NotFound
from tenants.models import Tenant

#: Rows of each table; the API has all invoices.
SHOWN = 100
EVENTS_SHOWN = 20
SHAPES = {"paid": "ok", "open": "busy", "draft": "busy", "void": "off", "uncollectible": "bad"}


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal, issuer: str) -> HttpResponseBase:
    """Show the account; with POST, connect it, push a month, or void an invoice."""
    found = issuers.find(issuer)
    connection = StripeConnection.objects.select_related("issuer").filter(issuer=found).first()
    form = StripeForm(connection=connection)
    if request.method == "GET":
        return _show(request, principal, found, connection, form)
    action = request.POST.get("action")
    if action == "connect":
        form = StripeForm(request.POST, connection=connection)
        if not form.is_valid():
            return _show(request, principal, found, connection, form)
    try:
        messages.success(request, _change(request, principal, found, form))
    except (InvoiceRefused, StripeRefused, StripeUnavailable, BadCredit, CreditRefused) as error:
        if action == "connect":
            form.add_error(None, str(error))
            return _show(request, principal, found, connection, form)
        messages.error(request, f"Nothing was changed. {error}")
    return redirect("portal:stripe", issuer=found.name)


def _change(request: HttpRequest, principal: Principal, issuer: Issuer, form: StripeForm) -> str:
    """Make the change that was asked for; return what it did. Raises NotFound and billing's errors."""
    match request.POST.get("action"):
        case "connect":
            connection = connections.connect(principal.actor, issuer.name, form.wanted())
            return f"{issuer.name} is connected with {connection.account_id} ({connections.mode(connection)} mode)."
        case "push":
            first = periods.parse_month(request.POST.get("month", ""), timezone.now())
            tenant = tenant_for(principal, request.POST.get("tenant", ""))
            push, _ = pushing.begin(
                principal.actor, Month(tenant=tenant, year=first.year, month=first.month), issuer.name
            )
            pushing.request(push)
            return f"{push.period} of {tenant.slug} goes to Stripe within a minute. Its state is in the table."
        case "void":
            push = _push(request.POST.get("invoice", ""), issuer)
            pushing.void(principal.actor, push, request.POST.get("reason", ""))
            return f"{push} is void."
        case "return":
            return _return(request, principal, issuer)
    raise NotFound("page", request.path)


def _return(request: HttpRequest, principal: Principal, issuer: Issuer) -> str:
    connection = connections.find(issuer.name)
    try:
        asked = followups.post_return(principal.actor, connection, UUID(request.POST.get("event", "")))
    except ValueError:
        raise NotFound("event", request.POST.get("event", "")) from None
    if asked.state == CreditRequest.State.PENDING:
        return f"{asked.reference} waits for a second person, on the tenant's page Billing."
    return f"{asked.reference} is posted."


def _push(text: str, issuer: Issuer) -> StripeInvoice:
    try:
        identity = UUID(text)
    except ValueError:
        raise NotFound("stripe invoice", text) from None
    rows = StripeInvoice.objects.select_related("connection__issuer")
    found = rows.filter(id=identity, connection__issuer=issuer).first()
    if found is None:
        raise NotFound("stripe invoice", text)
    return found


def _show(
    request: HttpRequest, principal: Principal, issuer: Issuer, connection: StripeConnection | None, form: StripeForm
) -> HttpResponse:
    context: dict[str, Any] = {
        "issuer": issuer,
        "connection": connection,
        "form": form,
        "endpoint": request.build_absolute_uri(f"/api/v1/stripe/webhooks/{issuer.name}"),
    }
    if connection is not None:
        invoices = connection.invoices.select_related("mirror").order_by("-id")[: most(request, "invoices", SHOWN)]
        slugs = dict(Tenant.objects.filter(id__in={each.tenant_id for each in invoices}).values_list("id", "slug"))
        last = comparison.latest(connection)
        done = comparison.latest(connection, finished=True)
        context |= {
            "mode": connections.mode(connection),
            "secrets": list(connection.webhook_secrets.order_by("-id")),
            "invoices": [(each, slugs[each.tenant_id], SHAPES.get(each.status, "busy")) for each in invoices],
            "followups": followups.listed(connection),
            "events": list(connection.events.order_by("-id")[: most(request, "events", EVENTS_SHOWN)]),
            "last": last,
            "done": done,
            "findings": list(done.findings.order_by("id")[: most(request, "findings", SHOWN)]) if done else [],
        }
    status = 400 if form.errors else 200
    return show(request, principal, "portal/stripe.html", context, active="invoices", status=status)
