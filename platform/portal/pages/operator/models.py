"""The models of the platform: who may call them, and the forms that rename, alias, share and archive one."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_GET, require_http_methods

from catalogue.models import Model
from portal.access.principal import Principal
from portal.fleet import model_changes, model_list
from portal.fleet.model_changes import ModelChange
from portal.forms.models import ModelForm
from portal.pages.base import form_action, operator_page, show
from tenants import error_text as tenant_errors
from tenants.errors import NotFound, TenantError
from workers.errors import WorkerError
from workers.fleet import error_text as worker_errors


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """List the models; with ``?archived=1`` the archived ones too."""
    archived = "archived" in request.GET
    context = {"rows": model_list.read(archived=archived), "archived": archived}
    return show(request, principal, "portal/models.html", context, active="models")


@require_http_methods(["GET", "POST"])
@operator_page
def edit(request: HttpRequest, principal: Principal, name: str) -> HttpResponseBase:
    """Show and change one model."""
    model = _find(name)
    status = 200
    if request.method == "POST":
        form = ModelForm(request.POST, model=model)
        if form.is_valid() and _changed(principal, model.name, form):
            messages.success(request, f"{form.cleaned_data['name']} is changed. Every gateway applies it in a second.")
            return redirect("portal:model", name=form.cleaned_data["name"])
        status = 400
    else:
        form = ModelForm(model=model)
    listed = next((each for each in model_list.read(archived=True) if each.name == model.name), None)
    context = {"form": form, "model": model, "listed": listed}
    return show(request, principal, "portal/model.html", context, active="models", status=status)


@form_action("portal:models")
@operator_page
def set_archived(request: HttpRequest, principal: Principal, name: str) -> HttpResponseBase:
    """Archive or restore one model."""
    model = _find(name)
    archived = request.POST.get("archived") == "1"
    model_changes.change(principal.actor, model.name, ModelChange(archived=archived))
    done = "archived: no tenant sees it, and its replicas stop" if archived else "served again"
    messages.success(request, f"{model.name} is {done}.")
    return redirect("portal:model", name=model.name)


def _find(name: str) -> Model:
    found = Model.objects.select_related("owner").filter(name=name).first() if "\0" not in name else None
    if found is None:
        raise NotFound("model", name)
    return found


def _changed(principal: Principal, name: str, form: ModelForm) -> bool:
    """Apply the form; False if the change is refused, which the form then says."""
    try:
        model_changes.change(principal.actor, name, form.change(name))
    except TenantError as error:
        form.add_error(None, tenant_errors.words(error))
    except WorkerError as error:
        form.add_error(None, f"{worker_errors.words(error)}.")
    return not form.errors
