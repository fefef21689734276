"""What an operator can change of a model, everywhere at once: catalogue, prices and deployments.

The command, the API and the page call :func:`change`. Each change sets a state, so repeating it changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from django.db import transaction

from billing.plans import registry as plans
from billing.pricing import prices
from catalogue import administration
from catalogue.models import Model
from catalogue.registry import Description
from portal.fleet import announcements
from reserved_capacity import registry as reserved_capacity
from tenants.audit import Actor
from tenants.errors import NotFound
from workers import tasks
from workers.errors import Refused
from workers.fleet import deployments, engine_arguments, model_options, rollouts
from workers.fleet.model_options import NO_CHANGE, OptionChange
from workers.model_sources import checks
from workers.models import Deployment
from workers.scheduler import reconciler
from workers.weights import hub_tokens, secrets

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retirement:
    """When a model retires, None for never; and the name or an alias of what to call instead, empty for none."""

    retires_at: datetime | None
    replacement: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChange:
    """New values of a model; None leaves one as it is.

    ``tenants`` are the slugs of the tenants that see a private model beside its owner.
    """

    name: str | None = None
    archived: bool | None = None
    visibility: str | None = None
    tenants: tuple[str, ...] | None = None
    aliases: tuple[str, ...] | None = None
    #: An alias of another model that becomes one of this model.
    take_alias: str | None = None
    #: The token for the hub; an empty text removes it.
    hub_token: str | None = field(default=None, repr=False)
    #: The name of the secret that its files are fetched with; an empty text: none.
    secret: str | None = None
    #: From when on its requests are refused, and what to call instead.
    retirement: Retirement | None = None
    #: Options of its deployment and its engines. A change replaces its replicas.
    options: OptionChange = NO_CHANGE


def change(actor: Actor, name: str, wanted: ModelChange, *, warn: Callable[[str], None] = log.warning) -> Model:
    """Apply a change to the model of this name or alias, all of it or nothing, and return the model.

    The engine's own parser checks options first, which takes seconds for vLLM; ``warn`` gets a sentence if this machine
    cannot do that. Raises NotFound, BadName, AlreadyExists,
    NotAllowed, ModelRefused, and the errors of ``model_options`` and ``engine_arguments``.
    """
    redeployment = _redeployment(name, wanted.options, warn) if wanted.options else None
    return _change(actor, name, wanted, redeployment, warn)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Redeployment:
    """A deployment, and what it shall serve."""

    deployment: Deployment
    described: Description


def _redeployment(name: str, options: OptionChange, warn: Callable[[str], None]) -> _Redeployment:
    """Return the checked change of a model's deployment."""
    with transaction.atomic():
        model = administration.find(name)
    rows = Deployment.objects.select_related("revision__model__owner")
    found = rows.filter(revision__model=model, archived_at=None).order_by("name").first()
    if found is None:
        raise Refused("model", model.name, "it is not deployed", f"deploy it first: `hearth deploy {model.name}`")
    found = rollouts.as_wanted(found)
    described = model_options.changed(found, options)
    if options.engine_args is not None:
        described = replace(described, engine_args=checks.all_arguments(found.revision, options.engine_args))
    if options.slots_per_replica is not None:
        for pool in model_options.pools_of(found)[:1]:
            model_options.check_nodes(described.slots_per_replica, pool)
    described = checks.check_options(found, described, options)
    if options.is_of_engine and (why := engine_arguments.check(described)):
        warn(
            f"The engine's arguments of {model.name} are not checked on this machine: {why}. A replica that refuses "
            "them says so."
        )
    return _Redeployment(deployment=found, described=described)


@transaction.atomic
def _change(
    actor: Actor, name: str, wanted: ModelChange, redeployment: _Redeployment | None, warn: Callable[[str], None]
) -> Model:
    """Apply a checked change.

    Takes the locks of prices and of the reconciler before any row: their other holders raise the policy epoch last.
    """
    if wanted.name is not None or redeployment is not None:
        prices.exclude_batches()
    if wanted.name is not None or wanted.archived is not None or redeployment is not None:
        reconciler.lock(wait=True)
    model = administration.find(name)
    if redeployment is not None:  # before a new name, which the description does not have
        model_options.apply(actor, redeployment.deployment, redeployment.described)
        tasks.hint(())
    if wanted.name is not None:
        model = _rename(actor, model, wanted.name, warn)
    if wanted.visibility is not None or wanted.tenants is not None:
        model = _set_visibility(actor, model, wanted)
    if wanted.aliases is not None:
        model = administration.set_aliases(actor, model.name, wanted.aliases)
    if wanted.take_alias is not None:
        model = administration.move_alias(actor, wanted.take_alias, model.name)
    if wanted.retirement is not None:
        model = _retire(actor, model, wanted.retirement)
    if wanted.secret is not None:
        secrets.use(actor, model, wanted.secret)
    if wanted.hub_token:
        hub_tokens.store(actor, model, wanted.hub_token)
    elif wanted.hub_token is not None:
        hub_tokens.remove(actor, model)
    if wanted.archived is not None:
        model = _archive(actor, model) if wanted.archived else _restore(actor, model)
    return model


@transaction.atomic
def change_aliases(actor: Actor, name: str, wanted: Callable[[set[str]], set[str]], known: str = "") -> Model:
    """Set the aliases to what ``wanted`` makes of the present ones, of which ``known`` must be one.

    Raises NotFound, BadName, AlreadyExists.
    """
    model = administration.find(name)
    present = set(model.aliases.values_list("name", flat=True))
    if known and known not in present:
        raise NotFound("alias", known)
    return administration.set_aliases(actor, model.name, wanted(present))


def _set_visibility(actor: Actor, model: Model, wanted: ModelChange) -> Model:
    visibility = wanted.visibility or (Model.Visibility.PRIVATE if wanted.tenants else model.visibility)
    shared = wanted.tenants
    if shared is None:  # unchanged; a public model has no list of tenants
        shared = tuple(administration.slugs_of(model.shared_with)) if visibility == Model.Visibility.PRIVATE else ()
    return administration.set_visibility(actor, model.name, visibility, shared)


def _rename(actor: Actor, model: Model, new_name: str, warn: Callable[[str], None]) -> Model:
    """Rename the model, price it as before, and let a rollout replace its engines, which know its old name."""
    old_name = model.name
    plans.require_no_mention(old_name, new_name)
    prices.lock_owners(old_name)
    renamed = administration.rename(actor, old_name, new_name)
    if renamed.name != old_name:
        prices.carry_over(actor, old_name, new_name)
        reserved_capacity.add_name(old_name, new_name)
        if why := rollouts.rename(actor, renamed, old_name):
            warn(
                f"Not all engines of {new_name} can be replaced now: {why}. Those serve it under both names, and call "
                f"it {old_name} in their answers, until they are: `celery -A hearth fleet rollout restart`."
            )
        tasks.hint(())
    return renamed


def _retire(actor: Actor, model: Model, wanted: Retirement) -> Model:
    """Set the date, and announce it to every tenant that may call the model."""
    retired = administration.set_retirement(actor, model.name, wanted.retires_at, wanted.replacement)
    if retired.retires_at is not None and retired.retires_at != model.retires_at:
        announcements.retirement(retired)
    return retired


def _archive(actor: Actor, model: Model) -> Model:
    deployments.archive(actor, model)
    tasks.hint(())
    return administration.archive(actor, model.name)


def _restore(actor: Actor, model: Model) -> Model:
    deployments.restore(actor, model)
    tasks.hint(())
    return administration.restore(actor, model.name)
