"""How long records are kept, what is due to be deleted, and erasing a tenant's personal data."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods
from redis import RedisError

from billing.models import UsageExport
from portal.access.principal import Principal, tenant_for
from portal.formats.table_csv import most
from portal.forms.retention import EraseForm, RetentionForm
from portal.pages.base import form_action, operator_page, show
from retention import erasure, partition_list, policy, preview
from retention.models import RetentionPolicy
from tenants.errors import NotAllowed
from tenants.models import Tenant

#: How many versions of the policy the page shows.
MAX_VERSIONS = 20
#: How many files of retired days the page shows.
MAX_EXPORTS = 31


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show the policy, its versions and what is due; change it."""
    form = RetentionForm(request.POST if request.method == "POST" else None, policy=policy.current())
    if request.method == "POST" and form.is_valid():
        policy.change(principal.actor, **form.cleaned_data)
        messages.success(request, _("Saved. What is older is deleted within an hour."))
        return redirect("portal:retention")
    context = {
        "form": form,
        "due": preview.read(),
        "versions": RetentionPolicy.objects.order_by("-version")[: most(request, "versions", MAX_VERSIONS)],
        "partitions": partition_list.by_month(partition_list.read()),
        "exports": UsageExport.objects.order_by("-id")[: most(request, "exports", MAX_EXPORTS)],
    }
    status = 400 if form.errors else 200
    return show(request, principal, "portal/retention.html", context, active="retention", status=status)


@form_action("portal:policy")
@operator_page
def erase(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Erase the personal data of an archived tenant, once its slug is typed."""
    tenant = tenant_for(principal, slug)
    form = EraseForm(request.POST, slug=tenant.slug)
    if not form.is_valid():
        return _refused(request, principal, tenant, form)
    try:
        erasure.erase(principal.actor, tenant)
        messages.success(request, _("The personal data is erased. The ledger, usage and statements stay."))
    except NotAllowed as error:
        messages.error(
            request, gettext("Nothing was erased: %(name)s is %(state)s.") % {"name": tenant.name, "state": error.state}
        )
    except RedisError:
        messages.error(request, _("Redis is unavailable. The rest is erased within an hour after it is back."))
    return redirect("portal:policy", slug=Tenant.objects.get(id=tenant.id).slug)


def _refused(request: HttpRequest, principal: Principal, tenant: Tenant, form: EraseForm) -> HttpResponse:
    context = {"form": form}
    return show(request, principal, "portal/erase.html", context, active="policy", tenant=tenant, status=400)
