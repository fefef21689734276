"""The page behind the link with which the owner of a mailbox confirms that it gets a tenant's invoices."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from billing.accounts import mail_addresses
from tenants.errors import BadName, NotFound

TEMPLATE = "portal/billing_address.html"


@require_http_methods(["GET", "POST"])
@never_cache
def confirm(request: HttpRequest, link: str) -> HttpResponse:
    """Show what the link confirms, and confirm it. Opening it changes nothing, because mail programs open links."""
    try:
        tenant, address = mail_addresses.of_token(link)
        if request.method == "POST":
            mail_addresses.confirm(mail_addresses.LINK, tenant, address)
    except (NotFound, BadName):  # the account may have lost the address since it was read
        return render(request, TEMPLATE, {"is_refused": True}, status=410)
    is_confirmed = address in mail_addresses.confirmed(tenant)
    return render(request, TEMPLATE, {"tenant": tenant, "address": address, "is_confirmed": is_confirmed})
