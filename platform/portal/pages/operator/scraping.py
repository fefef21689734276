"""The page *Scraping*: what Prometheus finds, and the tokens with which it may ask."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from portal.access.principal import Principal
from portal.access.requests import form_tokens, one_time_secrets
from portal.formats.query_params import posted, text
from portal.forms.fleet.scrape_tokens import ScrapeTokenForm
from portal.pages.base import form_action, operator_page, show
from tenants.errors import TenantError
from tenants.keys import scrape_tokens
from workers.fleet import scrape_targets

SENT_TWICE = _("This form was sent twice: one token was made. Revoke it and make another one if its text is lost.")


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """List targets and tokens, and make a token. ``?new=`` names the token whose text is shown, once."""
    form = ScrapeTokenForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        made = _made(request, principal, form)
        if made is not None:
            return made
    new = text(request.GET, "new") or ""
    secret = one_time_secrets.take(request, new) if new else None
    context = {
        "form": form,
        "form_token": form_tokens.new(),
        "targets": [(each, each.labels.get("__metrics_path__", "/metrics")) for each in scrape_targets.targets()],
        "tokens": [(each, scrape_tokens.state_of(each)) for each in scrape_tokens.newest()],
        "portal": request.build_absolute_uri("/").rstrip("/"),
        "new": new,
        "secret": secret,
    }
    status = 400 if form.errors else 200
    response = show(request, principal, "portal/scraping.html", context, active="fleet", status=status)
    if secret is not None:
        one_time_secrets.delete_cookie(response, new)
    return response


@form_action("portal:scraping")
@operator_page
def revoke_token(request: HttpRequest, principal: Principal, token: UUID) -> HttpResponseBase:
    """Revoke a token."""
    found = scrape_tokens.revoke(principal.actor, token)
    messages.success(
        request, gettext("Token %(name)s: %(state)s.") % {"name": found.name, "state": scrape_tokens.state_of(found)}
    )
    return redirect("portal:scraping")


def _made(request: HttpRequest, principal: Principal, form: ScrapeTokenForm) -> HttpResponse | None:
    """Make the token that a valid form asks for; None if it is refused, which the form then says."""
    if not form_tokens.use(posted(request, "form_token")):
        messages.info(request, SENT_TWICE)
        return redirect("portal:scraping")
    try:
        issued = scrape_tokens.issue(principal.actor, **form.cleaned_data)
    except TenantError as error:
        form.refuse(error)
        return None
    return one_time_secrets.show_once(request, reverse("portal:scraping"), str(issued.token.id), issued.secret)
