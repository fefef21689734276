"""The models that a tenant may call: what each is for, can do, costs, whether it answers, and how to call it."""

from __future__ import annotations

import json

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, gettext_noop
from django.views.decorators.http import require_GET

from portal.access.principal import Principal, tenant_for
from portal.access.requests.addresses import api_base
from portal.formats.table_csv import most
from portal.pages.base import page, show
from portal.reporting import tenant_catalogue
from portal.reporting.tenant_catalogue import CatalogueModel
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId

#: The abilities in the order of the page, with their words.
ABILITIES = (
    ("chat", gettext_noop("Chat"), "/v1/chat/completions, /v1/responses and /v1/messages"),
    ("completions", gettext_noop("Completions"), "/v1/completions"),
    ("embeddings", gettext_noop("Embeddings"), "/v1/embeddings"),
    ("tools", gettext_noop("Tools"), gettext_noop("It chooses among tools and calls them.")),
    (
        "structured_outputs",
        gettext_noop("Structured outputs"),
        gettext_noop("Its answer can be held to a JSON schema."),
    ),
    ("vision", gettext_noop("Images"), gettext_noop("It sees images in a prompt.")),
    ("reasoning", gettext_noop("Reasoning"), gettext_noop("Its reasoning stands apart from its answer.")),
    ("lora", gettext_noop("LoRA adapters"), gettext_noop("Its replicas load adapters.")),
)
#: Models of one page.
MOST_MODELS = 500


@require_GET
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """List the models that the tenant may call, those that have retired at the end."""
    tenant = tenant_for(principal, slug)
    with as_tenant(TenantId(tenant.id)):
        rows = list(
            tenant_catalogue.visible(tenant, principal).order_by("name")[: most(request, "catalogue", MOST_MODELS)]
        )
    found = tenant_catalogue.read(tenant, tenant_catalogue.names(rows))
    shown = sorted(found, key=lambda each: (each.has_retired, each.name))
    context = {"rows": [(each, _known(each)) for each in shown]}
    return show(request, principal, "portal/tenant_models.html", context, active="tenant-models", tenant=tenant)


@require_GET
@page
def detail(request: HttpRequest, principal: Principal, slug: str, name: str) -> HttpResponse:
    """Show one model with its abilities, its whole price, and a command that calls it."""
    tenant = tenant_for(principal, slug)
    model = tenant_catalogue.find(tenant, principal, name)
    if model is None:
        raise NotFound("model", name)
    context = {
        "model": model,
        "abilities": [(words, model.capabilities.get(key), about) for key, words, about in ABILITIES],
        "api_base": api_base(request),
        "path": "embeddings" if model.task == "embeddings" else "chat/completions",
        "body": _example(model),
    }
    return show(request, principal, "portal/tenant_model.html", context, active="tenant-models", tenant=tenant)


def _known(model: CatalogueModel) -> dict[str, list[str]]:
    """Return the words of what the model can do, and of what nobody knows."""
    return {
        "can": [gettext(words) for key, words, _ in ABILITIES if model.capabilities.get(key)],
        "unknown": [gettext(words) for key, words, _ in ABILITIES if model.capabilities.get(key) is None],
    }


def _example(model: CatalogueModel) -> str:
    """Return the body of a first request."""
    if model.task == "embeddings":
        return json.dumps({"model": model.name, "input": "Hello"})
    return json.dumps({"model": model.name, "messages": [{"role": "user", "content": "Hello"}]})
