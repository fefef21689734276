"""The models: who may call them, and the forms that rename, alias, share and archive one, and load an adapter."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods

from catalogue.models import Model
from portal.access.principal import Principal
from portal.fleet import model_changes, model_history, model_list
from portal.fleet.model_changes import ModelChange
from portal.formats.table_csv import most
from portal.forms.fleet.engine_options import EngineOptionsForm
from portal.forms.fleet.models import AdapterForm, ModelForm, TakeAliasForm
from portal.pages.audit import changes
from portal.pages.base import form_action, operator_page, show
from tenants import error_text as tenant_errors
from tenants.errors import BadName, NotFound, TenantError
from workers.errors import WorkerError
from workers.fleet import error_text as worker_errors
from workers.fleet import rollouts
from workers.fleet.status import inventory
from workers.model_sources import adapters
from workers.models import Deployment


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """List the models, with ``?archived=1`` the archived ones too; and load a LoRA adapter."""
    form = AdapterForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        notes: list[str] = []
        if _is_loaded(principal, form, notes):
            for note in notes:
                messages.warning(request, note)
            messages.success(
                request,
                gettext("%(name)s is loaded on each replica of its base.") % {"name": form.cleaned_data["name"]},
            )
            return redirect("portal:model", name=form.cleaned_data["name"])
    archived = "archived" in request.GET
    context = {"rows": model_list.read(archived=archived), "archived": archived, "form": form}
    status = 400 if form.errors else 200
    return show(request, principal, "portal/models.html", context, active="models", status=status)


@require_http_methods(["GET", "POST"])
@operator_page
def edit(request: HttpRequest, principal: Principal, name: str) -> HttpResponseBase:
    """Show and change one model: its names and visibility, or the options of its deployment."""
    model = _find(name)
    deployment = _deployment_of(model)
    if request.method == "POST" and deployment is not None and "slots_per_replica" in request.POST:
        options = EngineOptionsForm(request.POST, deployment=deployment)
        notes: list[str] = []
        if options.is_valid() and _options_changed(principal, model.name, options, notes):
            for note in notes:
                messages.warning(request, note)
            done = (
                gettext("%(name)s has these options. Its replicas are replaced.")
                if options.changed_data
                else gettext("%(name)s is as it was.")
            )
            messages.success(request, done % {"name": model.name})
            return redirect("portal:model", name=model.name)
        return _page(request, principal, model, ModelForm(model=model), options, status=400)
    status = 200
    if request.method == "POST" and "alias" in request.POST:
        return _take_alias(request, principal, model, deployment)
    if request.method == "POST":
        form = ModelForm(request.POST, model=model)
        said: list[str] = []
        if form.is_valid() and _changed(principal, model.name, form, said):
            for note in said:
                messages.warning(request, note)
            messages.success(
                request,
                gettext("%(name)s is changed. Every gateway applies it in a second.")
                % {"name": form.cleaned_data["name"]},
            )
            return redirect("portal:model", name=form.cleaned_data["name"])
        status = 400
    else:
        form = ModelForm(model=model)
    shown = None if deployment is None else EngineOptionsForm(deployment=deployment)
    return _page(request, principal, model, form, shown, status=status)


@form_action("portal:models")
@operator_page
def set_archived(request: HttpRequest, principal: Principal, name: str) -> HttpResponseBase:
    """Archive or restore one model."""
    model = _find(name)
    archived = request.POST.get("archived") == "1"
    try:
        model_changes.change(principal.actor, model.name, ModelChange(archived=archived))
    except WorkerError as error:
        messages.error(request, gettext("Nothing was changed: %(reason)s.") % {"reason": worker_errors.words(error)})
        return redirect("portal:model", name=model.name)
    done = (
        gettext("%(name)s is archived: no tenant sees it, and its replicas stop.")
        if archived
        else gettext("%(name)s is served again.")
    )
    messages.success(request, done % {"name": model.name})
    return redirect("portal:model", name=model.name)


@form_action("portal:models")
@operator_page
def undo(request: HttpRequest, principal: Principal, name: str, entry: UUID) -> HttpResponseBase:
    """Take back one of the model's last changes."""
    model = _find(name)
    wanted = model_history.undo_of(model, entry)
    said: list[str] = []
    try:
        model = model_changes.change(principal.actor, model.name, wanted, warn=said.append)
    except TenantError as error:
        messages.error(request, gettext("Nothing was changed: %(reason)s") % {"reason": tenant_errors.words(error)})
    except WorkerError as error:
        messages.error(request, gettext("Nothing was changed: %(reason)s.") % {"reason": worker_errors.words(error)})
    else:
        for note in said:
            messages.warning(request, note)
        messages.success(request, gettext("The change of %(name)s is taken back.") % {"name": model.name})
    return redirect("portal:model", name=model.name)


def _take_alias(
    request: HttpRequest, principal: Principal, model: Model, deployment: Deployment | None
) -> HttpResponseBase:
    """Give the model an alias of another one."""
    form = TakeAliasForm(request.POST, model=model)
    if form.is_valid():
        alias = form.cleaned_data["alias"]
        try:
            model_changes.change(principal.actor, model.name, ModelChange(take_alias=alias))
        except TenantError as error:
            form.refuse(error)
        else:
            messages.success(
                request,
                gettext("Requests for %(alias)s go to %(name)s within a second.")
                % {"alias": alias, "name": model.name},
            )
            return redirect("portal:model", name=model.name)
    shown = None if deployment is None else EngineOptionsForm(deployment=deployment)
    return _page(request, principal, model, ModelForm(model=model), shown, status=400, take=form)


def _is_loaded(principal: Principal, form: AdapterForm, notes: list[str]) -> bool:
    """Deploy the adapter; False if it is refused, which the form then says. ``notes`` get what to know about it."""
    try:
        adapters.deploy_spec(principal.actor, form.spec(), notes.append)
    except TenantError as error:
        form.refuse(error)
    except WorkerError as error:
        form.add_error(None, worker_errors.words(error))
    return not form.errors


def _page(
    request: HttpRequest,
    principal: Principal,
    model: Model,
    form: ModelForm,
    options: EngineOptionsForm | None,
    *,
    status: int,
    take: TakeAliasForm | None = None,
) -> HttpResponse:
    listed = next((each for each in model_list.read(archived=True) if each.name == model.name), None)
    deployments = [each for each in inventory.read(with_history=False).deployments if each.model == model.name]
    context = {
        "form": form,
        "options": options,
        "model": model,
        "listed": listed,
        "deployments": deployments,
        "take": take or TakeAliasForm(model=model),
        "history": [
            (each, changes(each.audit.before, each.audit.after))
            for each in model_history.read(model, most=most(request, "history", model_history.SHOWN))
        ],
    }
    return show(request, principal, "portal/model.html", context, active="models", status=status)


def _deployment_of(model: Model) -> Deployment | None:
    rows = Deployment.objects.select_related("revision__model")
    found = rows.filter(revision__model=model, archived_at=None).order_by("name").first()
    return None if found is None else rollouts.as_wanted(found)


def _options_changed(principal: Principal, name: str, form: EngineOptionsForm, notes: list[str]) -> bool:
    """Apply the form; False if it is refused, which the form then says. ``notes`` get what could not be checked."""
    try:
        model_changes.change(principal.actor, name, ModelChange(options=form.change()), warn=notes.append)
    except TenantError as error:
        form.refuse(error)
    except WorkerError as error:
        form.add_error(None, f"{worker_errors.words(error)}.")
    return not form.errors


def _find(name: str) -> Model:
    found = Model.objects.select_related("owner").filter(name=name).first() if "\0" not in name else None
    if found is None:
        raise NotFound("model", name)
    return found


def _changed(principal: Principal, name: str, form: ModelForm, notes: list[str]) -> bool:
    """Apply the form; False if the change is refused, which the form then says. ``notes`` get what to know about it."""
    try:
        model_changes.change(principal.actor, name, form.change(name), warn=notes.append)
    except BadName as error:
        if error.kind not in form.fields_of_errors and error.kind not in form.fields:
            form.add_error(None, tenant_errors.words(error))
        else:
            form.refuse(error)
    except TenantError as error:
        form.add_error(None, tenant_errors.words(error))
    except WorkerError as error:
        form.add_error(None, f"{worker_errors.words(error)}.")
    return not form.errors
