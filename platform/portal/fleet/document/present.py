"""The fleet as it is, as a document."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import yaml

from billing.pricing import prices
from billing.pricing.rating import Rates
from catalogue import adapters, engine_options, models, routing_policy
from catalogue.models import ModelRevision
from portal.fleet.document import schema
from portal.fleet.document.schema import Fleet, Prices
from tenants.ids import PLATFORM_SLUG
from tenants.models import Tenant
from workers.engines.arguments import commit_of
from workers.engines.driver import serves_embeddings
from workers.fleet import operations, pools, rollouts
from workers.model_sources.source import is_tiny, own_arguments
from workers.models import Deployment, DeploymentPool, ModelSecret, Pool
from workers.scheduler.scaling import scaling_signals
from workers.serving import pool_requirements, rollout_policy

#: A price in dollars is for this many tokens, or requests.
PER_TOKENS, PER_REQUEST = 10**6, 1
FIELDS = {
    "prompt": ("prompt_pico", PER_TOKENS),
    "cached_prompt": ("cached_prompt_pico", PER_TOKENS),
    "completion": ("completion_pico", PER_TOKENS),
    "cache_write": ("cache_write_pico", PER_TOKENS),
    "reasoning": ("reasoning_pico", PER_TOKENS),
    "prediction_hit": ("prediction_hit_pico", PER_REQUEST),
    "coalesced": ("coalesced_pico", PER_REQUEST),
    "request": ("request_pico", PER_REQUEST),
}
MULTIPLIERS = {"low_priority_percent": "low_priority_bp", "high_priority_percent": "high_priority_bp"}


def read() -> Fleet:
    """Return the pools, the models of the platform that are deployed, with their deployments, and adapters of those."""
    rows = models.Model.objects.filter(owner__slug=PLATFORM_SLUG, archived_at=None)
    catalogue = list(rows.prefetch_related("aliases").order_by("name"))
    deployed = _deployed(catalogue)
    runs = {each.revision.model_id: each.revision for each in deployed}
    return Fleet(
        version=1,
        pools=[_pool(each) for each in Pool.objects.order_by("priority", "name")],
        models=_models([each for each in catalogue if each.id in runs], runs),
        deployments=[_deployment(each) for each in deployed],
        adapters=_adapters(list(runs)),
    )


def digests() -> dict[str, str]:
    """Return the digest of what each deployment of the platform runs, and of each adapter, by its name."""
    deployed = _deployed()
    found = {each.name: each.revision.digest for each in deployed}
    revisions = _wanted_adapters(each.revision.model_id for each in deployed)
    return found | {each.model.name: each.digest for each in revisions}


def running() -> dict[str, str]:
    """Return the digest of what runs of each model of the platform, by the model's name."""
    return {each.revision.model.name: each.revision.digest for each in _deployed()}


def _deployed(catalogue: Iterable[models.Model] | None = None) -> list[Deployment]:
    """Return the deployments of these models, of all by default, by name, with what they serve after a rollout."""
    rows = Deployment.objects.filter(archived_at=None, revision__model__owner__slug=PLATFORM_SLUG)
    if catalogue is not None:
        rows = rows.filter(revision__model__in=list(catalogue))
    return rollouts.all_as_wanted(rows.select_related("revision__model").order_by("name"))


def text(fleet: Fleet) -> str:
    """Return a document as YAML, without what has its default."""
    found = {"version": 1} | {
        kind: [_given(each) for each in entries]
        for kind, entries in (
            ("pools", fleet.pools),
            ("models", fleet.models),
            ("deployments", fleet.deployments),
            ("adapters", fleet.adapters or ()),
        )
        if entries
    }
    return str(yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=120))


def rates(prices: Prices) -> Rates:
    """Return the prices as the price book has them. Raises ValueError for what is no whole number of pico-dollars."""
    amounts: dict[str, Any] = {
        pico: None if (dollars := getattr(prices, field)) is None else schema.pico(dollars, per)
        for field, (pico, per) in FIELDS.items()
    }
    multipliers = {points: schema.basis_points(getattr(prices, field)) for field, points in MULTIPLIERS.items()}
    return Rates(**amounts, **multipliers)


def _given(entry: msgspec.Struct) -> dict[str, Any]:
    defaults = {field.name: field.default for field in msgspec.structs.fields(entry)}
    empty = {field.name for field in msgspec.structs.fields(entry) if field.default_factory is list}
    found = {}
    for name in entry.__struct_fields__:
        value = getattr(entry, name)
        if value == defaults[name] or (name in empty and not value):
            continue
        found[name] = _given(value) if isinstance(value, msgspec.Struct) else value
    return found


def _pool(row: Pool) -> schema.Pool:
    return schema.Pool(
        name=row.name,
        kind=row.kind,  # type: ignore[arg-type]  # the column has no other values
        region=row.region,
        priority=row.priority,
        placeholders_per_node=row.placeholders_per_node,
        placeholder_level=row.placeholder_level,  # type: ignore[arg-type]  # likewise
        high_water=row.high_water,
        low_water=row.low_water,
        staged_share=row.staged_share,
        gpu_type=row.gpu_type,
        labels=row.labels,
        slot_hour_usd=pools.dollars(row.slot_hour_pico) or None,
    )


def _models(rows: Iterable[models.Model], runs: dict[Any, ModelRevision]) -> list[schema.Model]:
    rows = list(rows)
    slugs = _slugs(rows)
    in_force = prices.in_force(row.name for row in rows)
    used = dict(ModelSecret.objects.filter(model__in=rows).values_list("model_id", "secret__name"))
    found = []
    for row in rows:
        revision = runs[row.id]
        found.append(
            schema.Model(
                name=row.name,
                source="" if is_tiny(revision.source) else revision.source,
                revision=commit_of(revision.engine_args),
                task="embeddings" if serves_embeddings(revision.engine_args) else "text",
                context_tokens=revision.context_length_tokens,
                secret=used.get(row.id),
                visibility=row.visibility,  # type: ignore[arg-type]  # the column has no other values
                tenants=sorted(slugs[each] for each in row.shared_with if each in slugs),
                aliases=sorted(alias.name for alias in row.aliases.all()),
                retires_at=schema.moment_text(row.retires_at),
                replacement=row.replacement,
                prices=_prices(in_force[row.name]) if row.name in in_force else None,
            )
        )
    return found


def _slugs(rows: Iterable[models.Model]) -> dict[UUID, str]:
    """Return the slugs of the tenants that these models are shared with, by their ids."""
    ids = {each for row in rows for each in row.shared_with}
    return dict(Tenant.objects.filter(id__in=ids).values_list("id", "slug"))


def _wanted_adapters(bases: Iterable[UUID]) -> list[ModelRevision]:
    """Return what replicas shall have of each adapter of these models, by the adapter's name."""
    found = [each for base in models.Model.objects.filter(id__in=list(bases)) for each in adapters.of(base)]
    return sorted(found, key=lambda each: each.model.name)


def _adapters(bases: Iterable[UUID]) -> list[schema.Adapter]:
    revisions = _wanted_adapters(bases)
    rows = {
        row.id: row
        for row in models.Model.objects.filter(id__in=[each.model_id for each in revisions])
        .select_related("owner")
        .prefetch_related("aliases")
    }
    slugs = _slugs(rows.values())
    in_force = prices.in_force(row.name for row in rows.values())
    used = dict(ModelSecret.objects.filter(model__in=rows).values_list("model_id", "secret__name"))
    found = []
    for revision in revisions:
        row = rows[revision.model_id]
        found.append(
            schema.Adapter(
                name=row.name,
                source=revision.source,
                revision=commit_of(revision.engine_args),
                owner=row.owner.slug,
                secret=used.get(row.id),
                visibility=row.visibility,  # type: ignore[arg-type]  # the column has no other values
                tenants=sorted(slugs[each] for each in row.shared_with if each in slugs),
                aliases=sorted(alias.name for alias in row.aliases.all()),
                prices=_prices(in_force[row.name]) if row.name in in_force else None,
            )
        )
    return found


def _prices(rates: Rates) -> Prices:
    amounts: dict[str, Any] = {
        field: None if (price := getattr(rates, pico)) is None else _dollars(price, per)
        for field, (pico, per) in FIELDS.items()
    }
    multipliers = {field: _percent(getattr(rates, points)) for field, points in MULTIPLIERS.items()}
    return Prices(**amounts, **multipliers)


def _dollars(pico: int, per: int) -> str:
    return f"{(Decimal(pico) * per / 10**12).normalize():f}"


def _percent(basis_points: int) -> str:
    return f"{(Decimal(basis_points) / 100).normalize():f}"


def _deployment(row: Deployment) -> schema.Deployment:
    links = DeploymentPool.objects.filter(deployment=row).order_by("sequence")
    return schema.Deployment(
        model=row.revision.model.name,
        name=row.name,
        pools=list(links.values_list("pool__name", flat=True)),
        requires=pool_requirements.read(row.requires),
        min_replicas=row.min_replicas,
        max_replicas=row.max_replicas,
        slots_per_replica=row.slots_per_replica,
        engine=row.revision.engine,  # type: ignore[arg-type]  # the column has no other values
        engine_version=row.revision.engine_version,
        options=schema.EngineOptions(**msgspec.structs.asdict(engine_options.from_json(row.revision.options))),
        engine_args=list(own_arguments(row.revision)),
        drain_seconds=row.drain_seconds,
        rollout=rollout_policy.read(row.rollout),
        routing=str(routing_policy.read(row.routing).policy),
        target_tokens_per_replica=operations.target_of(row).target_tokens_per_replica,
        objectives=scaling_signals.read(row.objectives),
        scale_up_delay_seconds=row.scale_up_delay_seconds,
        scale_down_delay_seconds=row.scale_down_delay_seconds,
    )
