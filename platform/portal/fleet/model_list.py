"""The models that operators see: who may call them, how many replicas run, and their aliases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext

from billing.pricing import prices
from catalogue.models import Model
from tenants.models import Tenant
from workers.fleet.status import adapters
from workers.models import Deployment, Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """One model. ``tenants`` are the slugs of those that see it beside its owner while it is private."""

    name: str
    owner: str
    visibility: str
    tenants: tuple[str, ...]
    aliases: tuple[str, ...]
    archived: bool
    deployments: tuple[str, ...]
    ready: int
    desired: int
    #: The platform's book has a price for it; without one its usage is unrated.
    priced: bool
    #: Of a LoRA adapter: the model that it changes. Its replicas are those of that model, ready where it is loaded.
    base: str = ""
    #: Of a LoRA adapter: how far it is, and why no further.
    note: str = ""
    #: The same if replicas cannot load it; else empty.
    trouble: str = ""

    @property
    def shown_visibility(self) -> str:
        """Return who sees it."""
        if self.visibility == Model.Visibility.PUBLIC:
            return gettext("every tenant")
        return ", ".join((self.owner, *self.tenants))

    @property
    def state(self) -> str:
        """Return whether it can be called, in a word or two."""
        if self.archived:
            return "archived"
        if not self.deployments and not self.base:
            return "not deployed"
        if not self.desired:
            return "0 replicas"
        return "ready" if self.ready else "not ready"


def read(*, archived: bool) -> list[ListedModel]:
    """Return the models by name; with ``archived`` also those."""
    rows = Model.objects.select_related("owner").prefetch_related("aliases").order_by("name")
    models = list(rows if archived else rows.filter(archived_at=None))
    deployments = list(
        Deployment.objects.filter(archived_at=None, revision__model__in=models)
        .select_related("revision")
        .order_by("name")
    )
    ready = Counter(
        Replica.objects.filter(state=Replica.State.READY, desired_state=Replica.Desired.RUNNING)
        .filter(deployment__in=deployments)
        .values_list("deployment_id", flat=True)
    )
    slugs, loads = _slugs(models), adapters.by_model(models)
    priced = prices.priced(model.name for model in models)
    listed = []
    for model in models:
        own = [each for each in deployments if each.revision.model_id == model.id]
        load = loads.get(model.id)
        listed.append(
            ListedModel(
                name=model.name,
                owner=model.owner.slug,
                visibility=model.visibility,
                tenants=tuple(sorted(slugs[each] for each in model.shared_with if each in slugs)),
                aliases=tuple(sorted(alias.name for alias in model.aliases.all())),
                archived=model.archived_at is not None,
                deployments=tuple(each.name for each in own),
                ready=load.loaded if load is not None else sum(ready[each.id] for each in own),
                desired=load.ready if load is not None else sum(each.desired_replicas for each in own),
                priced=model.name in priced,
                base=load.base if load is not None else "",
                note=load.words if load is not None else "",
                trouble=load.words if load is not None and load.is_refused else "",
            )
        )
    return listed


def _slugs(models: Sequence[Model]) -> dict[object, str]:
    ids = {tenant_id for model in models for tenant_id in model.shared_with}
    return dict(Tenant.objects.filter(id__in=ids).values_list("id", "slug")) if ids else {}
