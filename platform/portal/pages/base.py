"""What every page has: a signed-in user, the navigation rail, security headers and error pages."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from portal.access import confinement, support_view
from portal.access.identity import mfa
from portal.access.principal import Principal, own_tenants, principal_of_user, tenant_for
from portal.access.rights import change_limit, member_rights, notification_rights, operator_rights
from portal.access.rights.change_limit import PageRequest
from portal.errors import BadQuery, NotPermitted
from portal.formats import query_params, table_csv
from portal.forms.base import PageForm
from portal.reporting import periods
from portal.reporting.billing import dunning_banner
from portal.reporting.periods import Period
from tenants import error_text
from tenants.errors import NotFound, SetByAbove, TenantError
from tenants.models import Tenant, User

#: Keys of the pages that show a period, which their links to one another keep.
REPORTS = frozenset(
    ("overview", "home", "requests", "tenant-requests", "usage", "tenant-usage", "savings", "routing", "tenants")
)
#: The cookie in which ``page.js`` reports the reader's time zone.
ZONE_COOKIE = "hearth_timezone"

#: A View takes the request and the path's parameters; a PrincipalView takes the principal between them.
View = Callable[..., HttpResponseBase]
PrincipalView = Callable[..., HttpResponseBase]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link of the rail or of a tenant's tabs."""

    key: str
    label: str
    icon: str
    url: str


def page(view: PrincipalView, *, needs_factor: bool = True) -> View:
    """Require a signed-in user, who makes not too many changes; report what the user may not see as not found.

    A change that an operator's role does not allow is refused before the view runs. Those of whom a second factor is
    required set one before they see a page that ``needs_factor``.
    """

    @wraps(view)
    def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        if not isinstance(request.user, User) or not request.user.is_active:
            return redirect_to_login(request.get_full_path())
        request.asked_at = time.time()  # type: ignore[attr-defined]  # before anything is read: see frame()
        principal = principal_of_user(request.user)
        try:
            principal = support_view.principal_of_session(request, principal)
            confinement.begin(principal)
            wait_seconds = change_limit.count_page(PageRequest(request.method, principal))
            if wait_seconds is not None:
                return _too_many_changes(request, principal, wait_seconds)
            is_refused = needs_factor and mfa.is_missing(request.user)
            return redirect("mfa_index") if is_refused else view(request, principal, *args, **kwargs)
        except NotPermitted as error:
            return _forbidden(request, principal, error)
        except NotFound:
            return _error_page(
                request, principal, 404, _("Page not found"), _("It does not exist, or you may not see it.")
            )
        except BadQuery as error:
            problem = gettext("The parameter %(parameter)s is not valid. Use %(allowed)s.") % {
                "parameter": f"{error.param}={error.value!r}",
                "allowed": error.allowed,
            }
            return _error_page(request, principal, 400, _("This address is not valid"), problem)

    return guarded


def form_action(back: str) -> Callable[[View], View]:
    """Accept POST only. Opening or reloading the address of a form leads to the page ``back``, which has the form."""

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
            if request.method in {"GET", "HEAD"}:
                return redirect(back, slug=kwargs["slug"]) if "slug" in kwargs else redirect(back)
            if request.method != "POST":
                return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
            return view(request, *args, **kwargs)

        return guarded

    return decorate


def submit(
    request: HttpRequest, form: PageForm, change: Callable[[], str], *, back: str, slug: str
) -> HttpResponse | None:
    """Make a change that a form asks for, show its result as a message and redirect to ``back``.

    None if the form was refused: its errors say why. A change that this principal may not make is a message.
    """
    if not form.is_valid():
        return None
    try:
        messages.success(request, change())
    except NotPermitted as error:
        messages.error(request, unchanged(error.reason))
    except SetByAbove as error:
        messages.error(request, unchanged(error_text.words(error)))
    except TenantError as error:
        form.refuse(error)
        return None
    return redirect(back, slug=slug)


def unchanged(reason: str) -> str:
    """Return the message that a change was not made. ``reason`` is a sentence."""
    return gettext("Nothing was changed. %(reason)s") % {"reason": reason}


def operator_page(view: PrincipalView) -> View:
    """Show the page to operators; to all others it is not found."""

    @wraps(view)
    def guarded(request: HttpRequest, principal: Principal, *args: object, **kwargs: object) -> HttpResponseBase:
        if not principal.is_operator:
            raise NotFound("page", request.path)
        return view(request, principal, *args, **kwargs)

    return page(guarded)


def show(
    request: HttpRequest,
    principal: Principal,
    template: str,
    context: dict[str, Any],
    *,
    active: str,
    tenant: Tenant | None = None,
    status: int = 200,
) -> HttpResponse:
    """Render a page within the frame, or one of its tables as CSV.

    ``active`` is the key of its link in the rail or in the tenant's tabs.
    """
    answer = render(
        request, template, {**frame(request, principal, active=active, tenant=tenant), **context}, status=status
    )
    table = table_csv.wanted(request)
    return table_csv.of_page(request, answer.content.decode(), table) if table and status == HTTPStatus.OK else answer


def frame(request: HttpRequest, principal: Principal, *, active: str, tenant: Tenant | None = None) -> dict[str, Any]:
    """Return what the template of the frame shows."""
    tabs = _in_period(request, active, tenant_links(principal, tenant)) if tenant and principal.is_operator else ()
    own = tenant or _own_tenant(principal)
    return {
        "principal": principal,
        "rail": _in_period(request, active, rail_links(principal, own)),
        "rail_tenant": None if principal.is_operator else own,
        "others": other_tenants(principal, own),
        "tabs": tabs,
        "tenant": tenant,
        "active": active,
        "banner": dunning_banner.of(principal, tenant) if tenant else None,
        "active_rail": "tenants" if tenant and principal.is_operator else active,
        "asked_at": getattr(request, "asked_at", 0.0),
        "is_read_only": principal.support is not None or not operator_rights.may_change(principal, request.path),
    }


def _in_period(request: HttpRequest, active: str, links: tuple[Link, ...]) -> tuple[Link, ...]:
    """Return the links, those to reports with the period that this report's address has."""
    query = urlencode({name: request.GET[name] for name in periods.PARAMETERS if name in request.GET})
    if not query or active not in REPORTS:
        return links
    return tuple(replace(link, url=f"{link.url}?{query}") if link.key in REPORTS else link for link in links)


def _own_tenant(principal: Principal) -> Tenant | None:
    """Return a member's tenant, whose pages the rail of a page without a tenant names; None for operators."""
    return None if principal.is_operator else next(iter(own_tenants(principal)), None)


def rail_links(principal: Principal, tenant: Tenant | None) -> tuple[Link, ...]:
    """Return the links of the rail: the platform's pages for operators, the tenant's pages for its members."""
    if principal.is_operator:
        return (
            Link(key="overview", label=_("Overview"), icon="home", url=reverse("portal:overview")),
            Link(key="fleet", label=_("Fleet"), icon="fleet", url=reverse("portal:fleet")),
            Link(key="routing", label=_("Routing"), icon="routing", url=reverse("portal:routing")),
            Link(key="requests", label=_("Requests"), icon="requests", url=reverse("portal:requests")),
            Link(key="usage", label=_("Usage"), icon="usage", url=reverse("portal:usage-by")),
            Link(key="savings", label=_("Savings"), icon="savings", url=reverse("portal:all-savings")),
            Link(key="models", label=_("Models"), icon="models", url=reverse("portal:models")),
            Link(key="tenants", label=_("Tenants"), icon="tenants", url=reverse("portal:tenants")),
            Link(key="prices", label=_("Prices"), icon="prices", url=reverse("portal:prices")),
            Link(key="all-billing", label=_("Billing"), icon="billing", url=reverse("portal:all-billing")),
            Link(key="months", label=_("Months"), icon="statement", url=reverse("portal:months")),
            Link(key="invoices", label=_("Invoices"), icon="invoices", url=reverse("portal:invoices")),
            Link(
                key="reconciliation",
                label=_("Reconciliation"),
                icon="books",
                url=reverse("portal:reconciliation"),
            ),
            Link(key="alerts", label=_("Alerts"), icon="alerts", url=reverse("portal:alerts")),
            Link(key="webhooks", label=_("Webhooks"), icon="webhooks", url=reverse("portal:webhooks")),
            Link(key="audit", label=_("Audit"), icon="audit", url=reverse("portal:audit")),
            Link(key="secrets", label=_("Secrets"), icon="secrets", url=reverse("portal:secrets")),
            Link(key="operators", label=_("Operators"), icon="members", url=reverse("portal:operators")),
            Link(key="retention", label=_("Retention"), icon="retention", url=reverse("portal:retention")),
        )
    return tenant_links(principal, tenant) if tenant else ()


def tenant_links(principal: Principal, tenant: Tenant) -> tuple[Link, ...]:
    """Return the links to the pages of one tenant that this principal may see."""
    names = (
        ("home", _("Home"), "home", "portal:tenant"),
        ("tenant-models", _("Models"), "models", "portal:tenant-models"),
        *(
            (("playground", _("Playground"), "playground", "portal:playground"),)
            if principal.may_play(tenant.id)
            else ()
        ),
        ("tenant-requests", _("Requests"), "requests", "portal:tenant-requests"),
        ("tenant-usage", _("Usage"), "usage", "portal:tenant-usage"),
        ("savings", _("Savings"), "savings", "portal:savings"),
        ("advisor", _("Advisor"), "advisor", "portal:advisor"),
        *((("statement", _("Statement"), "statement", "portal:statement"),) if principal.sees_whole(tenant.id) else ()),
        *(_BILL_PAGES if principal.handles_bills_of(tenant.id) else ()),
        *(
            (("tenant-webhooks", _("Webhooks"), "webhooks", "portal:tenant-webhooks"),)
            if notification_rights.may_read(principal, tenant)
            else ()
        ),
        ("tenant-prices", _("Prices"), "prices", "portal:tenant-prices"),
        ("keys", _("Keys"), "keys", "portal:keys"),
        ("projects", _("Projects"), "projects", "portal:projects"),
        *(
            (("members", _("Members"), "members", "portal:members"),)
            if member_rights.may_change(principal, tenant)
            else ()
        ),
        ("limits", _("Limits and budgets"), "limits", "portal:limits"),
        ("cache", _("Prediction cache"), "cache", "portal:cache"),
        ("policy", _("Policy"), "policy", "portal:policy"),
        *(
            (("sign-in", _("Sign-in"), "shield", "portal:sign-in-provider"),)
            if principal.is_owner_of(tenant.id)
            else ()
        ),
        ("tenant-audit", _("Audit"), "audit", "portal:tenant-audit"),
    )
    return tuple(
        Link(key=key, label=label, icon=icon, url=reverse(name, args=[tenant.slug])) for key, label, icon, name in names
    )


#: For those who handle the tenant's bills.
_BILL_PAGES = (
    ("billing", _("Billing"), "billing", "portal:billing"),
    ("tenant-invoices", _("Invoices"), "invoices", "portal:tenant-invoices"),
)


def other_tenants(principal: Principal, tenant: Tenant | None) -> tuple[Link, ...]:
    """Return links to a member's other tenants."""
    if principal.is_operator or principal.tenants is None or len(principal.tenants) < 2:
        return ()
    return tuple(
        Link(key=other.slug, label=other.name, icon="tenants", url=reverse("portal:tenant", args=[other.slug]))
        for other in own_tenants(principal)
        if tenant is None or other.id != tenant.id
    )


def period_of(request: HttpRequest, default: str = periods.DEFAULT_PRESET, tenant: Tenant | None = None) -> Period:
    """Read the page's period, in the time zone that ``page.js`` reports; a month in the tenant's. Raises BadQuery."""
    zone = periods.zone_named(request.COOKIES.get(ZONE_COOKIE))
    return periods.parse(request.GET, timezone.now(), default, zone, month_zone_of(tenant))


def chosen_tenant(request: HttpRequest, principal: Principal) -> Tenant | None:
    """Return the tenant that the parameter ``tenant`` names, to an operator. Raises BadQuery if there is none."""
    named = query_params.text(request.GET, "tenant")
    try:
        return tenant_for(principal, named) if named else None
    except NotFound:
        raise BadQuery("tenant", named or "", "the slug of a tenant") from None


def month_zone_of(tenant: Tenant | None) -> ZoneInfo | None:
    """Return the time zone of a tenant's calendar months; None for the reader's."""
    return None if tenant is None else periods.zone_named(tenant.billing_timezone)


def with_query(request: HttpRequest, **changes: str | None) -> str:
    """Return this page's query string with these parameters set; None removes one."""
    query = {key: value for key, value in request.GET.items() if key not in changes}
    return urlencode(query | {key: value for key, value in changes.items() if value is not None})


def _forbidden(request: HttpRequest, principal: Principal, error: NotPermitted) -> HttpResponse:
    if request.method == "GET":
        return _error_page(request, principal, 403, _("You may not see this"), error.reason)
    problem = unchanged(error.reason)
    return _error_page(request, principal, 403, _("You may not change this"), problem)


def _too_many_changes(request: HttpRequest, principal: Principal, wait_seconds: int) -> HttpResponse:
    problem = gettext(
        "You made as many changes within a minute as one person may, on these pages and through the API. Nothing was "
        "changed now. Go back and try again in %(seconds)s s."
    ) % {"seconds": wait_seconds}
    response = _error_page(request, principal, 429, _("Too many changes"), problem)
    response["Retry-After"] = str(wait_seconds)
    return response


def _error_page(request: HttpRequest, principal: Principal, status: int, title: str, problem: str) -> HttpResponse:
    context = {"title": title, "problem": problem}
    return show(request, principal, "portal/error.html", context, active="", status=status)
