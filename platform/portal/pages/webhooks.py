"""Webhook endpoints: a tenant's, and the operators' own. What was sent, what came back, and sending again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from django.contrib import messages
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods, require_POST

from notifications.models import DeliveryAttempt, WebhookEndpoint
from notifications.webhooks import deliveries, endpoints
from portal.access.principal import Principal
from portal.access.requests import form_tokens, one_time_secrets
from portal.access.rights import notification_rights
from portal.errors import NotPermitted
from portal.formats.query_params import posted, text
from portal.formats.table_csv import most
from portal.forms.webhooks import WebhookForm
from portal.pages.base import page, show, unchanged
from tenants import error_text
from tenants.errors import BadName, NotFound, TenantError
from tenants.models import Tenant

MAX_ROWS = 100
#: How far back the buttons send again.
RANGES = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}


@require_http_methods(["GET", "POST"])
@page
def index(request: HttpRequest, principal: Principal, slug: str | None = None) -> HttpResponseBase:
    """List the endpoints; create one for those who may. ``?new=`` names the one whose secret is shown, once."""
    owner = _owner(principal, slug, is_change=request.method == "POST")
    form = WebhookForm(request.POST if request.method == "POST" else None, offered=endpoints.types_for(owner))
    if request.method == "POST" and form.is_valid():
        made = _created(request, principal, owner, form)
        if made is not None:
            return made
    with notification_rights.reading(owner):
        rows = [(each, endpoints.state_of(each)) for each in endpoints.of(owner)]
    new = text(request.GET, "new") or ""
    secret = one_time_secrets.take(request, new) if new else None
    context = {
        "rows": rows,
        "form": form,
        "form_token": form_tokens.new(),
        "new": new,
        "secret": secret,
        "most": endpoints.MOST_ENDPOINTS,
    }
    status = 400 if form.errors else 200
    response = _show(request, principal, owner, "portal/webhooks.html", context, status)
    if secret is not None:
        one_time_secrets.delete_cookie(response, new)
    return response


@require_http_methods(["GET", "POST"])
@page
def detail(request: HttpRequest, principal: Principal, webhook: UUID, slug: str | None = None) -> HttpResponseBase:
    """Show the newest deliveries with their attempts; change the endpoint."""
    owner = _owner(principal, slug, is_change=request.method == "POST")
    with notification_rights.reading(owner):
        endpoint = endpoints.find(owner, webhook)
    given = request.POST if request.method == "POST" else None
    form = WebhookForm(given, offered=endpoints.types_for(owner), endpoint=endpoint)
    if given is not None and form.is_valid():
        wanted = form.cleaned_data
        try:
            endpoints.change(
                principal.actor, endpoint, url=wanted["url"], about=wanted["about"], event_types=wanted["types"]
            )
            messages.success(request, _("Saved. What waits goes to this URL."))
            return redirect(_url(owner, "webhook", webhook))
        except TenantError as error:
            form.refuse(error)
    with notification_rights.reading(owner):
        log = Prefetch("log", DeliveryAttempt.objects.order_by("-id"))
        rows = list(deliveries.of(endpoint).prefetch_related(log)[: most(request, "deliveries", MAX_ROWS)])
    context = {"endpoint": endpoint, "state_word": endpoints.state_of(endpoint), "rows": rows, "form": form}
    return _show(request, principal, owner, "portal/webhook.html", context, 400 if form.errors else 200)


@require_POST
@page
def act(
    request: HttpRequest, principal: Principal, webhook: UUID, verb: str, slug: str | None = None
) -> HttpResponseBase:
    """Test, pause, resume, rotate or remove an endpoint, or send events again."""
    owner = _owner(principal, slug, is_change=True)
    endpoint = endpoints.find(owner, webhook)
    if verb == "rotate":
        return _rotated(request, principal, owner, endpoint)
    if verb not in _ACTIONS:
        raise NotFound("page", request.path)
    try:
        messages.success(request, _ACTIONS[verb](request, principal, endpoint))
    except TenantError as error:
        messages.error(request, unchanged(error_text.words(error)))
    return redirect(_url(owner, "webhooks") if verb == "remove" else _url(owner, "webhook", webhook))


def _test(request: HttpRequest, principal: Principal, endpoint: WebhookEndpoint) -> str:
    deliveries.test(principal.actor, endpoint)
    return _("A test is sent within seconds. Reload this page to see what came back.")


def _pause(request: HttpRequest, principal: Principal, endpoint: WebhookEndpoint) -> str:
    endpoints.change(principal.actor, endpoint, is_paused=True)
    return _("Paused: deliveries wait until it is resumed.")


def _resume(request: HttpRequest, principal: Principal, endpoint: WebhookEndpoint) -> str:
    endpoints.resume(principal.actor, endpoint)
    return _("Resumed: what waited is sent now.")


def _remove(request: HttpRequest, principal: Principal, endpoint: WebhookEndpoint) -> str:
    endpoints.remove(principal.actor, endpoint)
    return _("Removed, with its deliveries and their log.")


def _replay(request: HttpRequest, principal: Principal, endpoint: WebhookEndpoint) -> str:
    if span := RANGES.get(posted(request, "range")):
        now = timezone.now()
        count = deliveries.replay_between(principal.actor, endpoint, now - span, now)
        return gettext("%(count)s events are sent again.") % {"count": count}
    try:
        delivery = UUID(posted(request, "delivery"))
    except ValueError:
        raise BadName("delivery", posted(request, "delivery")[:64], "one of the list") from None
    deliveries.replay(principal.actor, endpoint, delivery)
    return _("The event is sent again within seconds.")


_ACTIONS: dict[str, Callable[[HttpRequest, Principal, WebhookEndpoint], str]] = {
    "test": _test,
    "pause": _pause,
    "resume": _resume,
    "remove": _remove,
    "replay": _replay,
}


def _created(
    request: HttpRequest, principal: Principal, owner: Tenant | None, form: WebhookForm
) -> HttpResponse | None:
    """Create the endpoint of a valid form; None if it is refused, which the form then says."""
    if not form_tokens.use(posted(request, "form_token")):
        messages.info(request, _("This form was sent twice: the endpoint was created once."))
        return redirect(_url(owner, "webhooks"))
    wanted = form.cleaned_data
    try:
        made = endpoints.create(principal.actor, owner, url=wanted["url"], about=wanted["about"], types=wanted["types"])
    except TenantError as error:
        form.refuse(error)
        return None
    return one_time_secrets.show_once(request, _url(owner, "webhooks"), str(made.endpoint.id), made.secret)


def _rotated(
    request: HttpRequest, principal: Principal, owner: Tenant | None, endpoint: WebhookEndpoint
) -> HttpResponseRedirect:
    try:
        made = endpoints.rotate(principal.actor, endpoint)
    except TenantError as error:
        messages.error(request, unchanged(error_text.words(error)))
        return redirect(_url(owner, "webhooks"))
    return one_time_secrets.show_once(request, _url(owner, "webhooks"), str(made.endpoint.id), made.secret)


def _owner(principal: Principal, slug: str | None, *, is_change: bool) -> Tenant | None:
    """Return the tenant, or None for the operators' own. Raises NotFound for whoever may not."""
    find = notification_rights.owner_to_change if is_change else notification_rights.owner_to_read
    try:
        return find(principal, slug)
    except NotPermitted:
        raise NotFound("page", "webhooks") from None


def _url(owner: Tenant | None, name: str, *names: object) -> str:
    if owner is None:
        return reverse(f"portal:{name}", args=names)
    return reverse(f"portal:tenant-{name}", args=[owner.slug, *names])


def _show(
    request: HttpRequest,
    principal: Principal,
    owner: Tenant | None,
    template: str,
    context: dict[str, object],
    status: int,
) -> HttpResponse:
    urls = {"list_url": _url(owner, "webhooks"), "owner": owner}
    active = "webhooks" if owner is None else "tenant-webhooks"
    return show(request, principal, template, {**context, **urls}, active=active, tenant=owner, status=status)
