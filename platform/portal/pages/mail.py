"""Which e-mails the signed-in person gets, at which address, and the newest that were sent to them."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from notifications.mail import recipients
from notifications.models import Mail
from portal.access.principal import Principal
from portal.formats.table_csv import most
from portal.forms.mail import MailForm
from portal.pages.base import page, show
from tenants.errors import NotFound, TenantError

MAX_ROWS = 50


@require_http_methods(["GET", "POST"])
@page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show and change what the person gets. Nobody sees or changes another person's."""
    user = principal.user
    if user is None:
        raise NotFound("page", request.path)
    offered = recipients.mailed_types(user)
    given = request.POST if request.method == "POST" else None
    # Where e-mails are sent, an address is changed on the account's page, which verifies it.
    asked = None if settings.EMAIL_IS_SENT else user.email
    form = MailForm(given, offered=offered, refused=recipients.refused(user), address=asked)
    if given is not None and form.is_valid():
        try:
            address = form.cleaned_data.get("address", user.email)
            recipients.choose(principal.actor, user, address=address, refuse=form.refusals())
            messages.success(request, _("Saved."))
            return redirect("portal:mail")
        except TenantError as error:
            form.refuse(error)
    mails = Mail.objects.filter(user=user).select_related("event").order_by("-id")
    context = {
        "form": form,
        "always": [each for each in offered if not each.is_optional],
        "rows": list(mails[: most(request, "mails", MAX_ROWS)]),
        "is_sent": settings.EMAIL_IS_SENT,
        "address": user.email,
    }
    return show(request, principal, "portal/mail.html", context, active="mail", status=400 if form.errors else 200)
