"""The models that a tenant may call, as its catalogue page and the API show them. Others' do not exist for it.

``/v1/models`` says the same from a gateway's memory (``gateway.pipeline.model_details``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from billing.pricing import prices
from billing.pricing.rating import Price
from catalogue import registry
from catalogue.models import Model, ModelAlias
from catalogue.registry import Catalogue, ServedModel
from portal.access.principal import Principal
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Tenant
from tenants.registry import policy_of
from workers.serving.model_facts import capabilities, states
from workers.serving.model_facts.states import FleetNow, ModelState


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueModel:
    """A model as a tenant sees it. ``None`` is what nobody knows."""

    id: UUID
    name: str
    owner: str
    aliases: tuple[str, ...]
    #: Of a LoRA adapter: the model that it changes; empty for any other model, and if the tenant may not see that.
    base: str
    task: str
    context_tokens: int | None
    #: By the name of the ability, as ``workers.serving.model_facts.capabilities`` has them.
    capabilities: Mapping[str, bool | None]
    #: What the tenant pays, at its priority.
    price: Price | None
    state: ModelState
    deprecated_at: datetime | None
    retires_at: datetime | None
    replacement: str

    @property
    def has_retired(self) -> bool:
        """Return whether requests for it are refused."""
        return self.retires_at is not None and self.retires_at <= timezone.now()


def visible(tenant: Tenant, principal: Principal) -> QuerySet[Model]:
    """Return the models that a tenant may call, and this principal if it is a key. Run it behind row-level security."""
    seen = Q(visibility=Model.Visibility.PUBLIC) | Q(owner=tenant) | Q(shared_with__contains=[tenant.id])
    found = Model.objects.filter(seen, archived_at=None)
    return found.filter(name__in=principal.allowed_models) if principal.allowed_models else found


def find(tenant: Tenant, principal: Principal, name: str) -> CatalogueModel | None:
    """Return the model of this name or alias that a tenant may call; None if there is none."""
    if "\0" in name:  # PostgreSQL refuses to compare with it
        return None
    aliased = list(ModelAlias.objects.filter(name=name).values_list("model_id", flat=True)[:1])
    with as_tenant(TenantId(tenant.id)):
        seen = visible(tenant, principal)
        rows = list(seen.filter(name=name)[:1]) or list(seen.filter(id__in=aliased)[:1])
    return next(iter(read(tenant, names(rows))), None)


def read(tenant: Tenant, found: Mapping[UUID, str]) -> list[CatalogueModel]:
    """Describe models that were read behind row-level security, given as names by id, in that order.

    A model that no engine has ever been told to serve is left out: nobody can call it.
    """
    now = timezone.now()
    with as_tenant(TenantId(tenant.id)):
        table = prices.table_for([tenant.id], found.values())
        priority = policy_of(tenant).priority
    catalogue, fleet = registry.load(), states.read()
    described = []
    for identity, name in found.items():
        model = catalogue.models.get(name)
        if model is None or model.name != name:
            continue
        price = table.at(tenant.id, name, now)
        at_priority = price and replace(price, rates=price.rates.at(priority))
        described.append(_described(identity, tenant, model, at_priority, catalogue, fleet))
    return described


def _described(
    identity: UUID, tenant: Tenant, model: ServedModel, price: Price | None, catalogue: Catalogue, fleet: FleetNow
) -> CatalogueModel:
    tenant_id, regions = TenantId(tenant.id), frozenset(tenant.allowed_regions)
    ready = fleet.ready_in(model, regions)
    known = asdict(capabilities.of(model))
    task = known.pop("task")
    contexts = (each.context_tokens for each in fleet.ready.get(model.name, ()))
    found = states.state_of(model, is_ready=bool(ready), starts=fleet.starts, regions=regions, now=datetime.now(UTC))
    return CatalogueModel(
        id=identity,
        name=model.name,
        owner=model.owner_slug,
        aliases=model.aliases,
        base=model.base if model.base and catalogue.find(tenant_id, model.base) is not None else "",
        task=task,
        context_tokens=states.context_of(model, contexts, fleet.last_contexts),
        capabilities=known,
        price=price,
        state=found,
        deprecated_at=_moment(model.deprecated_at),
        retires_at=_moment(model.retires_at),
        replacement=_shown_replacement(catalogue, tenant_id, model),
    )


def _shown_replacement(catalogue: Catalogue, tenant_id: TenantId, model: ServedModel) -> str:
    found = catalogue.find(tenant_id, model.replacement) if model.replacement else None
    return "" if found is None else model.replacement


def names(rows: Collection[Model]) -> dict[UUID, str]:
    """Return the names of models by their ids, in their order."""
    return {row.id: row.name for row in rows}


def _moment(unix_seconds: int | None) -> datetime | None:
    return None if unix_seconds is None else datetime.fromtimestamp(unix_seconds, UTC)
