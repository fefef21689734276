"""Make the fleet what a document says, all of it or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from django.db import transaction
from django.db.models import Q

from billing.pricing import prices
from billing.pricing.rating import Rates
from catalogue import administration, registry, routing_policy
from catalogue.engine_options import DEFAULT as DEFAULT_OPTIONS
from catalogue.engine_options import EngineOptions
from catalogue.models import Model as ModelRow
from catalogue.models import ModelRevision
from catalogue.registry import Description
from catalogue.routing_policy import BadPolicy
from portal.fleet import model_changes
from portal.fleet.document import adapters, difference, present, reading, renames, schema
from portal.fleet.document.difference import Change
from portal.fleet.document.entry_errors import about
from portal.fleet.document.reading import BadDocument
from portal.fleet.document.schema import Adapter, Fleet, Model, Pool
from portal.fleet.document.schema import Deployment as DeploymentEntry
from portal.fleet.model_changes import ModelChange, Retirement
from tenants import registry as tenants
from tenants.audit import Actor
from tenants.ids import PLATFORM_SLUG
from tenants.models import Tenant as TenantRow
from workers import tasks
from workers.engines.driver import TINY_MODEL
from workers.fleet import deployments, engine_arguments, engine_versions, operations, pools, rollouts
from workers.fleet.operations import ScalingTarget
from workers.fleet.pools import PoolSettings
from workers.model_sources import checks
from workers.model_sources.adapters import Base
from workers.model_sources.source import ModelSpec, deployment_name, is_tiny
from workers.models import Deployment
from workers.models import Pool as PoolRow
from workers.scheduler import reconciler
from workers.serving import pool_requirements
from workers.sizing import gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was, or would be, changed; and what to know about it, in sentences."""

    changes: Sequence[Change]
    notes: Sequence[str]


def apply_text(
    actor: Actor, text: str, *, prune: bool, dry_run: bool, confirm_prices: bool, may_set_prices: bool = True
) -> Outcome:
    """Read a document and apply it. Raises BadDocument with the line of what is wrong."""
    wanted = reading.read(text)
    try:
        flags = {"prune": prune, "dry_run": dry_run, "confirm_prices": confirm_prices}
        return apply(actor, wanted, **flags, may_set_prices=may_set_prices)
    except BadDocument as error:
        raise reading.locate(text, error) from error


def apply(
    actor: Actor, wanted: Fleet, *, prune: bool, dry_run: bool, confirm_prices: bool, may_set_prices: bool = True
) -> Outcome:
    """Bring the fleet to what a document says; what it does not name stays, with ``prune`` its models are archived.

    Everything is checked first; then all of it changes, or nothing, and with ``dry_run`` nothing. The same document
    twice changes nothing, unless a branch that it names has moved. Raises BadDocument, also for
    another price without ``may_set_prices``.
    """
    notes: list[str] = []
    _check_names(wanted)
    wanted = renames.with_aliases(wanted)
    is_now = present.read()
    names = renames.due(wanted, is_now)
    checked = renames.applied(is_now, names)
    wanted = _with_versions(wanted, checked)
    running = {names.get(name, name): digest for name, digest in present.running().items()}
    described = _described(wanted, checked, running, notes)
    fresh = adapters.checked(wanted.adapters or (), checked.adapters or (), _bases(wanted), notes)
    with transaction.atomic():
        prices.exclude_batches()  # these two locks before any row of a model and before the policy epoch
        reconciler.lock(wait=True)
        _lock_models()
        renames.bring_about(actor, wanted, names, notes.append)
        before, digests = present.read(), present.digests()
        _check_unchanged(wanted, checked, before)
        if prune:
            _prune(actor, wanted)
        _bring_about(actor, wanted, before, described)
        adapters.bring_about(actor, wanted.adapters or (), before.adapters or (), fresh)
        _set_all_retirements(actor, wanted)
        _set_all_prices(actor, wanted, confirm=confirm_prices, is_allowed=may_set_prices)
        changes = renames.shown(difference.between(before, present.read(), digests, present.digests()), names)
        tasks.hint(())
        if dry_run:
            transaction.set_rollback(True)
    return Outcome(changes=changes, notes=notes)


def _with_versions(wanted: Fleet, now: Fleet) -> Fleet:
    """Return the document with the full version of each deployment's engine; where it names none, the present one."""
    present_ones = {each.model: each for each in now.deployments}
    found = []
    for at, entry in enumerate(wanted.deployments):
        known = present_ones.get(entry.model)
        if entry.engine_version:
            with about(f"deployments[{at}].engine_version"):
                version = engine_versions.resolve(entry.engine, entry.engine_version)
        elif known is not None and known.engine == entry.engine:
            version = known.engine_version
        else:
            version = engine_versions.for_new_model(entry.engine, PoolRow.objects.filter(name__in=entry.pools))
        found.append(msgspec.structs.replace(entry, engine_version=version))
    return msgspec.structs.replace(wanted, deployments=found)


def _lock_models() -> None:
    """Lock the platform, its models and adapters, in one order: then no change of one waits in a circle with this."""
    list(TenantRow.objects.select_for_update(no_key=True).filter(slug=PLATFORM_SLUG).values_list("id"))
    served = ModelRow.objects.filter(Q(owner__slug=PLATFORM_SLUG) | ~Q(base=None))
    rows = served.select_for_update(of=("self",)).order_by("id")
    list(rows.values_list("id"))


def _bring_about(actor: Actor, wanted: Fleet, before: Fleet, described: dict[str, Description]) -> None:
    """Write the entries that differ from what is there."""
    _free_aliases(actor, wanted, before)
    models, deployed = {each.name: each for each in before.models}, {each.model: each for each in before.deployments}
    revisions: dict[str, ModelRevision] = {}
    for at, pool in enumerate(wanted.pools):
        with about(f"pools[{at}]"):
            settings = _settings(pool)
            if _pool_spelled_out(pool, settings) not in before.pools:
                _set_pool(actor, pool, settings)
    for at, model in enumerate(wanted.models):
        with about(f"models[{at}]"):
            revision = _set_model(actor, model, described.get(model.name), known=model.name in models)
            if revision is not None:
                revisions[model.name] = revision
    for at, entry in enumerate(wanted.deployments):
        now = deployed.get(entry.model)
        if entry.model in described or now is None or _spelled_out(entry, now) != now:
            with about(f"deployments[{at}]"):
                _set_deployment(actor, entry, revisions.get(entry.model))


def _spelled_out(wanted: DeploymentEntry, now: DeploymentEntry) -> DeploymentEntry:
    """Return the entry as :func:`present.read` writes it: with a name, a maximum, and one spelling of its policy."""
    most = wanted.min_replicas if wanted.max_replicas is None else wanted.max_replicas
    changes: dict[str, object] = {"name": wanted.name or now.name, "max_replicas": most}
    changes["requires"] = pool_requirements.normalised(wanted.requires)
    with suppress(BadPolicy):  # is refused when it is set
        changes["routing"] = str(routing_policy.parse(wanted.routing))
    return msgspec.structs.replace(wanted, **changes)


def _free_aliases(actor: Actor, wanted: Fleet, before: Fleet) -> None:
    """Take aliases from models and adapters of the document that another one of it is to have."""
    aliases = {each.name: set(each.aliases) for each in (*wanted.models, *(wanted.adapters or ()))}
    for model in (*before.models, *(before.adapters or ())):
        claimed = {alias for name, theirs in aliases.items() if name != model.name for alias in theirs}
        if model.name in aliases and claimed.intersection(model.aliases):
            administration.set_aliases(actor, model.name, set(model.aliases) - claimed)


def _settings(wanted: Pool) -> PoolSettings:
    dollars = wanted.slot_hour_usd
    return PoolSettings(
        region=wanted.region,
        priority=wanted.priority,
        high_water=wanted.high_water,
        low_water=wanted.low_water,
        staged_share=wanted.staged_share,
        gpu_type=gpus.type_name(wanted.gpu_type),
        labels=dict(wanted.labels),
        slot_hour_pico=None if dollars is None else pools.pico(str(dollars)),
    )


def _pool_spelled_out(wanted: Pool, settings: PoolSettings) -> Pool:
    """Return the entry as :func:`present.read` writes it: with one spelling of its GPU type and its cost."""
    cost = pools.dollars(settings.slot_hour_pico) or None
    return msgspec.structs.replace(wanted, gpu_type=settings.gpu_type, slot_hour_usd=cost)


def _set_pool(actor: Actor, wanted: Pool, settings: PoolSettings) -> None:
    pools.ensure(actor, wanted.name, wanted.kind, settings)
    operations.warm(actor, wanted.name, wanted.placeholders_per_node, wanted.placeholder_level)


def _set_model(actor: Actor, wanted: Model, described: Description | None, *, known: bool) -> ModelRevision | None:
    """Write a model; return the revision that its deployment gets, None if it keeps its own."""
    revision = None
    if described is not None:
        found = Deployment.objects.filter(revision__model__name=wanted.name).order_by("name").first()
        slots_now = None if found is None else found.slots_per_replica
        revision = registry.record(actor, tenants.find_tenant(PLATFORM_SLUG), described, slots_now=slots_now)
        if is_tiny(revision.source) and wanted.prices is None:
            prices.ensure_demo_prices(actor, wanted.name)
    change = ModelChange(
        archived=None if known else False,
        visibility=wanted.visibility,
        tenants=tuple(wanted.tenants),
        aliases=tuple(wanted.aliases),
        secret=wanted.secret,
    )
    model_changes.change(actor, wanted.name, change)
    return revision


def _set_all_retirements(actor: Actor, wanted: Fleet) -> None:
    """Set when models retire, once all of them are there: one may replace another."""
    for at, entry in enumerate(wanted.models):
        with about(f"models[{at}]"):
            try:
                moment = schema.moment(entry.retires_at)
            except ValueError as error:
                raise BadDocument(f"{entry.retires_at} is no date.", ".retires_at") from error
            retirement = Retirement(retires_at=moment, replacement=entry.replacement)
            model_changes.change(actor, entry.name, ModelChange(retirement=retirement))


def _set_all_prices(actor: Actor, wanted: Fleet, *, confirm: bool, is_allowed: bool) -> None:
    """Set the prices of the models and the adapters that name some."""
    listed: dict[str, Sequence[Model | Adapter]] = {"models": wanted.models, "adapters": wanted.adapters or ()}
    for kind, entries in listed.items():
        for at, entry in enumerate(entries):
            if entry.prices is not None:
                with about(f"{kind}[{at}].prices"):
                    rates = present.rates(entry.prices)
                    _set_prices(actor, entry.name, rates, confirm=confirm, is_allowed=is_allowed)


def _set_prices(actor: Actor, name: str, wanted: Rates, *, confirm: bool, is_allowed: bool) -> None:
    if prices.in_force([name]).get(name) != wanted:
        if not is_allowed:
            raise BadDocument(f"another price of {name}; your role may not change prices: leave it out")
        prices.set_price(actor, prices.ensure_price_book(), name, wanted, confirm=confirm)


def _set_deployment(actor: Actor, wanted: DeploymentEntry, revision: ModelRevision | None) -> None:
    rows = PoolRow.objects.in_bulk(wanted.pools, field_name="name")
    for at, name in enumerate(wanted.pools):
        if name not in rows:
            raise BadDocument(f"There is no pool {name!r}.", f".pools[{at}]")
    own_pools = [rows[name] for name in wanted.pools]
    most = wanted.min_replicas if wanted.max_replicas is None else wanted.max_replicas
    rows_of_model = Deployment.objects.select_related("revision__model").filter(revision__model__name=wanted.model)
    found = rows_of_model.order_by("name").first()
    if revision is None:
        revision = registry.active(wanted.model) if found is None else rollouts.as_wanted(found).revision
    name = wanted.name or (found.name if found is not None else deployment_name(wanted.model))
    if found is None:
        deployments.create(
            actor,
            name=name,
            revision=revision,
            pools=own_pools,
            replicas=wanted.min_replicas,
            slots_per_replica=wanted.slots_per_replica,
        )
    elif found.name != name:
        raise BadDocument(f"The deployment of {wanted.model} is {found.name!r}, which cannot be changed.", ".name")
    else:
        deployments.restore(actor, revision.model)
        deployments.redeploy(
            actor, name, revision=revision, pools=own_pools, slots_per_replica=wanted.slots_per_replica
        )
    with about(".requires"):
        operations.require(actor, name, wanted.requires)
    deployments.scale(actor, name, wanted.min_replicas, most)
    deployments.set_drain(actor, name, wanted.drain_seconds)
    rollouts.set_policy(actor, name, wanted.rollout)
    target = ScalingTarget(
        target_tokens_per_replica=wanted.target_tokens_per_replica,
        scale_up_delay_seconds=wanted.scale_up_delay_seconds,
        scale_down_delay_seconds=wanted.scale_down_delay_seconds,
    )
    operations.set_target(actor, name, target)
    operations.set_objectives(actor, name, wanted.objectives)
    try:
        operations.route(actor, name, routing_policy.parse(wanted.routing))
    except BadPolicy as error:
        raise BadDocument(f"{error}.", ".routing") from error


def _prune(actor: Actor, wanted: Fleet) -> None:
    """Archive the platform's models that a document does not name; aliases that it gives to others go to them."""
    named = {each.name for each in wanted.models}
    claimed = {alias for each in (*wanted.models, *(wanted.adapters or ())) for alias in each.aliases}
    rows = ModelRow.objects.filter(owner__slug=PLATFORM_SLUG, base=None, archived_at=None).exclude(name__in=named)
    for row in rows.prefetch_related("aliases").order_by("name"):
        kept = tuple(alias.name for alias in row.aliases.all() if alias.name not in claimed)
        model_changes.change(actor, row.name, ModelChange(archived=True, aliases=kept))
    if wanted.adapters is not None:
        adapters.prune(actor, wanted.adapters, claimed)


def _described(wanted: Fleet, now: Fleet, running: Mapping[str, str], notes: list[str]) -> dict[str, Description]:
    """Check every model with its deployment, and return what is to run by the model's name.

    ``running``: the digest of what runs of each. Left out is a model that is served like that ``now``, unless its
    folder is on this machine and may have changed.
    """
    places = {each.model: at for at, each in enumerate(wanted.deployments)}
    served = _contents(now)
    found: dict[str, Description] = {}
    for at, model in enumerate(wanted.models):
        entry = wanted.deployments[places[model.name]]
        same = _content(model, entry) == served.get(model.name) and model.name in running
        if same and not Path(model.source or TINY_MODEL).is_dir():
            continue
        with about(f"models[{at}].secret"):
            spec = replace(_spec(model, entry), hub_token=checks.token_of(model.name, model.secret))
        if same:  # what it may run was allowed when it was deployed
            spec = replace(spec, allow_remote_code=True, allow_pickle=True)
        with about(f"deployments[{places[model.name]}].engine_args"):
            checks.check_arguments(spec)
        with about(f"models[{at}]"):
            spec = checks.check(model.name, spec, PoolRow.objects.filter(name=entry.pools[0]).first())
            description = spec.described()
        if same and description.digest() == running[model.name]:
            continue
        found[model.name] = description
        if spec.engine_args or spec.options != DEFAULT_OPTIONS:
            with about(f"deployments[{places[model.name]}]"):
                why = engine_arguments.check(description)
            if why:
                notes.append(f"The engine's arguments of {model.name} are not checked on this machine: {why}.")
    return found


def _bases(wanted: Fleet) -> dict[str, Base]:
    """Return what adapters change of the models of the document, by each of their names."""
    models = {each.name: each for each in wanted.models}
    found: dict[str, Base] = {}
    for entry in wanted.deployments:
        model = models[entry.model]
        spec = _spec(model, entry)
        base = Base(name=model.name, source=spec.stored_source(), engine=entry.engine, options=spec.options)
        found |= dict.fromkeys((*model.aliases, model.name), base)
    return found


def _check_unchanged(wanted: Fleet, checked: Fleet, now: Fleet) -> None:
    """Raise BadDocument if another change came to a model since it was ``checked``: this one would undo it."""
    before, after = _contents(checked), _contents(now)
    for at, model in enumerate(wanted.models):
        if before.get(model.name) != after.get(model.name):
            raise BadDocument(
                f"{model.name} was changed while the document was checked. Apply it again.", f"models[{at}]"
            )


def _contents(fleet: Fleet) -> dict[str, tuple[object, ...]]:
    """Return what the revision of each deployed model is made of, by the model's name."""
    models = {each.name: each for each in fleet.models}
    return {each.model: _content(models[each.model], each) for each in fleet.deployments if each.model in models}


def _content(model: Model, entry: DeploymentEntry) -> tuple[object, ...]:
    """Return what a revision of the model is made of, and the pool that has to hold it."""
    of_model = (model.source, model.revision, model.task, model.context_tokens)
    return (
        *of_model, entry.engine, entry.engine_version, entry.options, tuple(entry.engine_args),
        entry.slots_per_replica, entry.pools[:1],
    )  # fmt: skip


def _spec(model: Model, entry: DeploymentEntry) -> ModelSpec:
    return ModelSpec(
        name=model.name,
        source=model.source,
        engine=entry.engine,
        task=model.task,
        context_tokens=model.context_tokens,
        commit=model.revision,
        allow_remote_code=model.allow_remote_code,
        allow_pickle=model.allow_pickle,
        tenants=tuple(model.tenants) if model.visibility == "private" else None,
        slots_per_replica=entry.slots_per_replica,
        engine_args=tuple(entry.engine_args),
        options=EngineOptions(**msgspec.structs.asdict(entry.options)),
        engine_version=entry.engine_version,
    )


def _check_names(wanted: Fleet) -> None:
    """Raise BadDocument for what is named twice, or not at all."""
    models = {each.name for each in wanted.models}
    for kind, names in (
        ("pools", [each.name for each in wanted.pools]),
        ("models", [each.name for each in wanted.models]),
        ("deployments", [each.model for each in wanted.deployments]),
        ("adapters", [each.name for each in wanted.adapters or ()]),
    ):
        field = "model" if kind == "deployments" else "name"
        for at, name in enumerate(names):
            if name in names[:at]:
                raise BadDocument(f"{name!r} is there twice.", f"{kind}[{at}].{field}")
    for at, entry in enumerate(wanted.deployments):
        if entry.model not in models:
            raise BadDocument(f"There is no model {entry.model!r} in the document.", f"deployments[{at}].model")
    deployed = {each.model for each in wanted.deployments}
    for at, model in enumerate(wanted.models):
        if model.name not in deployed:
            raise BadDocument(f"{model.name!r} has no deployment in the document.", f"models[{at}].name")
