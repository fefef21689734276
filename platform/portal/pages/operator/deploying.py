"""The page that deploys a model: checked and sized first, then deployed with the same values."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from billing.errors import BillingError
from catalogue.models import Model
from portal.access.principal import Principal
from portal.access.rights import operator_rights
from portal.fleet import deploy_preview, deploying, model_changes
from portal.fleet.deploy_preview import Preview
from portal.fleet.model_changes import ModelChange
from portal.forms.fleet.deploy import DeployForm
from portal.pages.base import operator_page, show
from tenants.errors import TenantError
from workers.errors import WorkerError
from workers.fleet import error_text
from workers.models import Pool


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show the form; check it and show the sizer's figures; deploy what was shown."""
    if request.method != "POST":
        return _page(request, principal, DeployForm(), None)
    form = DeployForm(request.POST)
    if form.is_valid() and form.price() is not None and not operator_rights.may_set_prices(principal):
        form.add_error("prompt", _("Your role may not set prices: leave these empty, and let finance set them."))
    preview = _checked(form) if form.is_valid() else None
    if preview is None or not form.is_checked or "again" in request.POST:
        if preview is not None:
            form.data = request.POST.copy()
            form.data["checked"] = form.fingerprint()
        return _page(request, principal, form, preview)
    notes: list[str] = []
    if not _is_deployed(principal, form, notes):
        return _page(request, principal, form, preview)
    name = form.cleaned_data["name"]
    for note in notes:
        messages.warning(request, note)
    messages.success(
        request,
        gettext("%(name)s is deployed. The same as a command: %(command)s")
        % {"name": name, "command": preview.command},
    )
    return redirect("portal:model", name=name)


def _checked(form: DeployForm) -> Preview | None:
    """Return what is known of the deployment; None if it is refused, which the form then says."""
    spec, pool, replicas = form.spec(), form.pool_row(), form.cleaned_data["replicas"]
    try:
        deploying.checked(spec, pool)
        return deploy_preview.of(spec, pool, replicas)
    except TenantError as error:
        form.refuse(error)
    except WorkerError as error:
        form.add_error(None, f"{error_text.words(error)}.")
    return None


def _is_deployed(principal: Principal, form: DeployForm, notes: list[str]) -> bool:
    """Deploy what the form says; False if it is refused, which the form then says."""
    values = form.cleaned_data
    try:
        deploying.deploy(
            principal.actor, form.spec(), form.pool_row(), values["replicas"], price=form.price(), warn=notes.append
        )
        if values["visibility"] == Model.Visibility.PUBLIC:  # one that was private before stays so otherwise
            model_changes.change(principal.actor, values["name"], ModelChange(visibility=values["visibility"]))
    except TenantError as error:
        form.refuse(error)
    except (WorkerError, OSError) as error:
        form.add_error(None, f"{error_text.words(error) if isinstance(error, WorkerError) else error}.")
    except BillingError as error:
        form.add_error("prompt", f"{error}.")
    return not form.errors


def _page(request: HttpRequest, principal: Principal, form: DeployForm, preview: Preview | None) -> HttpResponse:
    context = {"form": form, "preview": preview, "has_pools": Pool.objects.exists()}
    return show(request, principal, "portal/deploy.html", context, active="models", status=400 if form.errors else 200)
