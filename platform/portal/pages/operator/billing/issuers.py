"""Issuers of invoices: the legal entities, and the default one."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from billing.errors import BadIssuer
from billing.invoices import issuers
from billing.models import Issuer, StripeConnection
from billing.stripe import connections
from portal.access.principal import Principal
from portal.forms.billing.issuer import IssuerForm
from portal.pages.base import operator_page, show


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show the issuers, and one of them in a form; change it, or add one."""
    name = request.POST.get("name", "") or request.GET.get("name", "")
    every = list(Issuer.objects.order_by("name"))
    chosen = next((each for each in every if each.name == name), None)
    if request.method == "GET":
        if chosen is None and "new" not in request.GET:
            chosen = next((each for each in every if each.is_default), None)
        return _show(request, principal, every, IssuerForm(issuer=chosen), chosen)
    form = IssuerForm(request.POST, issuer=chosen)
    if form.is_valid():
        try:
            found = issuers.set_issuer(
                principal.actor,
                form.cleaned_data["name"],
                form.values(),
                make_default=request.POST.get("default") == "on",
            )
        except BadIssuer as error:
            form.refuse_value(error)
        else:
            messages.success(request, _("Saved. Invoices from now on have these values."))
            return redirect(f"{reverse('portal:issuers')}?name={found.name}")
    return _show(request, principal, every, form, chosen)


def _show(
    request: HttpRequest, principal: Principal, every: list[Issuer], form: IssuerForm, chosen: Issuer | None
) -> HttpResponse:
    connection = StripeConnection.objects.filter(issuer=chosen).first() if chosen else None
    stripe = connections.mode(connection) if connection else ""
    rows = [(each, issuers.next_invoice(each), issuers.next_credit_note(each)) for each in every]
    context = {"issuers": every, "rows": rows, "form": form, "chosen": chosen, "stripe": stripe}
    status = 400 if form.errors else 200
    return show(request, principal, "portal/issuers.html", context, active="invoices", status=status)
