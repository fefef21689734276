"""The page *Nodes*: tokens for machines that join, the certificates of nodes, and removing a node for good."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from portal.access.principal import Principal
from portal.access.requests import form_tokens, one_time_secrets
from portal.formats.query_params import posted, text
from portal.forms.fleet.nodes import NodeTokenForm, RemoveNodeForm
from portal.pages.base import form_action, operator_page, show
from tenants import errors as tenants
from workers.errors import NotFound, WorkerError
from workers.fleet import error_text, lookup
from workers.fleet.joining import node_joining, node_tokens
from workers.fleet.status import inventory
from workers.models import Node, NodeToken

SENT_TWICE = _("This form was sent twice: one token was made. Revoke it and make another one if its command is lost.")
ROLE_LEFT = _("Its database role has no rights any more. To drop it, as a superuser")


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """List nodes and tokens, and make a token. ``?new=`` names the token whose command is shown, once."""
    portal = request.build_absolute_uri("/").rstrip("/")
    form = NodeTokenForm(request.POST if request.method == "POST" else None, portal=portal)
    if request.method == "POST" and form.is_valid():
        made = _made(request, principal, form)
        if made is not None:
            return made
    new = text(request.GET, "new") or ""
    command = one_time_secrets.take(request, new) if new else None
    context = {
        "form": form,
        "form_token": form_tokens.new(),
        "fleet": inventory.read(with_history=False),
        "tokens": [(each, node_tokens.state_of(each)) for each in node_tokens.newest()],
        "new": _token_named(new),
        "command": command,
    }
    status = 400 if form.errors else 200
    response = show(request, principal, "portal/nodes.html", context, active="fleet", status=status)
    if command is not None:
        one_time_secrets.delete_cookie(response, new)
    return response


@form_action("portal:nodes")
@operator_page
def revoke_token(request: HttpRequest, principal: Principal, token: UUID) -> HttpResponseBase:
    """Revoke a token. A node that joined with it stays."""
    try:
        found = node_tokens.revoke(principal.actor, token)
    except NotFound as error:
        raise tenants.NotFound(error.kind, error.name) from error
    messages.success(
        request,
        gettext("Token %(id)s: %(state)s.") % {"id": lookup.short(found.id), "state": node_tokens.state_of(found)},
    )
    return redirect("portal:nodes")


@require_http_methods(["GET", "POST"])
@operator_page
def remove(request: HttpRequest, principal: Principal, node: str) -> HttpResponseBase:
    """Show the form that removes a node, and remove it once its name is typed."""
    found = Node.objects.filter(name=node, removed_at=None).first() if "\0" not in node else None
    if found is None:
        raise tenants.NotFound("node", node)
    form = RemoveNodeForm(request.POST if request.method == "POST" else None, node=found.name)
    if request.method == "POST" and form.is_valid():
        try:
            removed = node_joining.remove(principal.actor, found.name)
        except WorkerError as error:
            form.add_error(None, f"{error_text.words(error)}.")
        else:
            messages.success(
                request,
                gettext("Node %(node)s is removed; %(replicas)s of its replicas had not ended.")
                % {"node": removed.node, "replicas": removed.replicas},
            )
            if removed.statement:
                messages.warning(request, f"{gettext(ROLE_LEFT)}: {removed.statement}")
            return redirect("portal:nodes")
    context = {"form": form, "node": found.name}
    if request.headers.get("HX-Request"):
        return render(request, "portal/parts/node_remove.html", context)
    status = 400 if form.errors else 200
    return show(request, principal, "portal/node_remove.html", context, active="fleet", status=status)


def _made(request: HttpRequest, principal: Principal, form: NodeTokenForm) -> HttpResponse | None:
    """Make the token that a valid form asks for; None if it is refused, which the form then says."""
    if not form_tokens.use(posted(request, "form_token")):
        messages.info(request, SENT_TWICE)
        return redirect("portal:nodes")
    try:
        issued = node_tokens.issue(principal.actor, **form.cleaned_data)
    except WorkerError as error:
        form.refuse_worker(error)
        return None
    return one_time_secrets.show_once(request, reverse("portal:nodes"), str(issued.token.id), issued.command)


def _token_named(new: str) -> NodeToken | None:
    try:
        return NodeToken.objects.select_related("pool").filter(id=UUID(new)).first() if new else None
    except ValueError:
        return None
