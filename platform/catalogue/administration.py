"""Change a registered model: its name, aliases, visibility, and whether it is archived.

Every change is audited and raises the policy epoch, so gateways apply it within a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import F, Func, Value
from django.utils import timezone

from catalogue.models import Model, ModelAlias
from tenants import audit, policy_epoch
from tenants.audit import Actor
from tenants.errors import AlreadyExists, BadName, NotAllowed, NotFound
from tenants.models import ApiKey, Budget, CachePurge, Limit, Tenant
from tenants.policy import budgets, purges
from tenants.policy.purges import PurgeTarget

#: As in ``org/Model-7B.v2``. Clients send it as JSON, and addresses contain it.
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/-]{0,198}[A-Za-z0-9])?")
ALLOWED = "1 to 200 characters a-z, A-Z, 0-9, '.', '_', ':', '/' and '-', with a letter or digit at both ends"
#: Aliases of one model.
MOST_ALIASES = 20


def check_name(name: str) -> str:
    """Return a valid name of a model or an alias. Raises BadName."""
    if not NAME.fullmatch(name) or "//" in name:
        raise BadName("model name", name, ALLOWED)
    return name


def find(name: str) -> Model:
    """Return the model of this name, or the one that has it as an alias, locked. Raises NotFound."""
    rows = Model.objects.select_for_update().select_related("owner")
    found = rows.filter(name=name).first() or rows.filter(aliases__name=name).first()
    if found is None:
        raise NotFound("model", name)
    return found


@transaction.atomic
def archive(actor: Actor, name: str) -> Model:
    """Remove a model from the lists of callable models; usage, prices and revisions stay. Raises NotFound."""
    return _set_archived(actor, find(name), True)


@transaction.atomic
def restore(actor: Actor, name: str) -> Model:
    """Make an archived model callable again. Raises NotFound."""
    return _set_archived(actor, find(name), False)


@transaction.atomic
def rename(actor: Actor, name: str, new_name: str) -> Model:
    """Give a model another name; its old name becomes an alias, and keys, limits, budgets and purges follow.

    Running engines know their old name: the caller lets them serve under it, and replaces them. Raises NotFound,
    BadName, AlreadyExists; NotAllowed while a limit or a budget names the new name, which no model has.
    """
    row = find(name)
    old = row.name
    if check_name(new_name) == old:
        return row
    _require_unused(new_name, except_for=row)
    if budget := Budget.objects.filter(model_name=new_name, archived_at=None).select_related("tenant").first():
        raise NotAllowed("model", new_name, f"named by a budget of tenant {budget.tenant.slug!r}: archive that first")
    if limit := Limit.objects.filter(model_name=new_name).select_related("tenant").first():
        raise NotAllowed("model", new_name, f"named by a limit of tenant {limit.tenant.slug!r}: remove that first")
    ModelAlias.objects.filter(model=row, name=new_name).delete()
    row.name = new_name
    row.save(update_fields=["name"])
    ModelAlias.objects.create(name=old, model=row)
    Limit.objects.filter(model_name=old).update(model_name=new_name)
    ApiKey.objects.filter(allowed_models__contains=[old]).update(
        allowed_models=Func(
            F("allowed_models"),
            Value(old, output_field=models.CharField()),
            Value(new_name, output_field=models.CharField()),
            function="array_replace",
            output_field=ArrayField(models.CharField(max_length=200)),
        )
    )
    concerned = purges.follow_rename(old, new_name) | budgets.follow_rename(old, new_name)
    _record(actor, row, "model.renamed", before={"name": old}, after={"name": new_name})
    limited = Limit.objects.filter(model_name=new_name).values_list("tenant_id", flat=True)
    allowed = ApiKey.objects.filter(allowed_models__contains=[new_name]).values_list("id", flat=True)
    policy_epoch.bump(tenants=concerned.union(limited), keys=allowed, models=True)
    return row


@transaction.atomic
def purge(actor: Actor, tenant: Tenant, target: PurgeTarget) -> CachePurge:
    """Purge a tenant's stored responses, those of a model by the name that it has when this is done.

    Holds the model's row, so that a renaming follows this purge, or this purge names the new name. Raises NotFound, and
    as ``purges.purge``.
    """
    if target.model_name:
        target = replace(target, model_name=find(target.model_name).name)
    return purges.purge(actor, tenant, target)


@transaction.atomic
def set_aliases(actor: Actor, name: str, aliases: Iterable[str]) -> Model:
    """Make these the model's only aliases. Raises NotFound, BadName, AlreadyExists."""
    row = find(name)
    wanted = {check_name(alias) for alias in aliases}
    if len(wanted) > MOST_ALIASES:
        raise BadName("number of aliases", str(len(wanted)), f"0 to {MOST_ALIASES}")
    present = set(ModelAlias.objects.filter(model=row).values_list("name", flat=True))
    for alias in sorted(wanted - present):
        if alias == row.name:
            raise AlreadyExists("model", alias)
        _require_unused(alias, except_for=row)
    if wanted != present:
        ModelAlias.objects.filter(model=row).exclude(name__in=wanted).delete()
        ModelAlias.objects.bulk_create(ModelAlias(name=alias, model=row) for alias in sorted(wanted - present))
        before, after = {"aliases": sorted(present)}, {"aliases": sorted(wanted)}
        _changed(actor, row, "model.aliases_set", before=before, after=after)
    return row


@transaction.atomic
def move_alias(actor: Actor, alias: str, name: str) -> Model:
    """Give an alias of one model to another: from then on, requests for it go there. Raises NotFound, BadName."""
    found = ModelAlias.objects.select_related("model").filter(name=alias).first()
    if found is None:
        raise NotFound("alias", alias)
    row, before = find(name), found.model.name
    if found.model_id == row.id:
        return row
    present = set(ModelAlias.objects.filter(model=found.model).values_list("name", flat=True))
    set_aliases(actor, before, present - {alias})
    return set_aliases(actor, row.name, {*ModelAlias.objects.filter(model=row).values_list("name", flat=True), alias})


@transaction.atomic
def set_visibility(actor: Actor, name: str, visibility: str, shared_with: Iterable[str] = ()) -> Model:
    """Make a model public, or private to its owner and the tenants of these slugs.

    Raises NotFound, also for an unknown tenant; BadName for an unknown visibility or a public model that is shared.
    """
    row = find(name)
    if visibility not in Model.Visibility.values:
        raise BadName("visibility", visibility, " or ".join(Model.Visibility.values))
    slugs = sorted(set(shared_with))
    if slugs and visibility == Model.Visibility.PUBLIC:
        raise BadName("list of tenants", ", ".join(slugs), "it with visibility private only: all see a public model")
    ids = dict(Tenant.objects.filter(slug__in=slugs).values_list("slug", "id"))
    if missing := [slug for slug in slugs if slug not in ids]:
        raise NotFound("tenant", missing[0])
    wanted = sorted(ids.values())
    before = {"visibility": row.visibility, "tenants": slugs_of(row.shared_with)}
    if (row.visibility, sorted(row.shared_with)) != (visibility, wanted):
        row.visibility, row.shared_with = visibility, wanted
        row.save(update_fields=["visibility", "shared_with"])
        _changed(actor, row, "model.visibility_set", before=before, after={"visibility": visibility, "tenants": slugs})
    return row


@transaction.atomic
def set_retirement(actor: Actor, name: str, retires_at: datetime | None, replacement: str = "") -> Model:
    """Announce from when on requests for a model are refused, and what to call instead; None: it does not retire.

    ``replacement``: the name or an alias of another model; empty: none. A second call moves the date. Raises NotFound;
    BadName for a moment that has passed, and for a replacement that is no other model that is served then.
    """
    row = find(name)
    if retires_at is not None:
        retires_at = retires_at.replace(microsecond=0)
    before = {"retires_at": _moment(row.retires_at), "replacement": row.replacement}
    after = {"retires_at": _moment(retires_at), "replacement": replacement}
    if before == after:
        return row
    now = timezone.now()
    if retires_at is not None and retires_at != row.retires_at and retires_at < now:
        raise BadName("retirement date", retires_at.isoformat(), "a moment that has not passed")
    if replacement:
        _require_replacement(row, retires_at, replacement)
    row.deprecated_at = None if retires_at is None else row.deprecated_at or now
    row.retires_at, row.replacement = retires_at, replacement
    row.save(update_fields=["deprecated_at", "retires_at", "replacement"])
    _changed(actor, row, "model.retirement_set", before=before, after=after)
    return row


def slugs_of(tenant_ids: Iterable[UUID]) -> list[str]:
    """Return the slugs of tenants, sorted."""
    return sorted(Tenant.objects.filter(id__in=list(tenant_ids)).values_list("slug", flat=True))


def _require_replacement(row: Model, retires_at: datetime | None, replacement: str) -> None:
    """Raise BadName for a replacement that is not a model, is this one, or is not served when this one retires."""
    allowed = "the name or an alias of another model that is served then"
    if retires_at is None:
        raise BadName("replacement", replacement, "it together with a retirement date")
    rows = Model.objects.filter(archived_at=None)
    found = rows.filter(name=replacement).first() or rows.filter(aliases__name=replacement).first()
    if found is None or found.id == row.id or (found.retires_at is not None and found.retires_at <= retires_at):
        raise BadName("replacement", replacement, allowed)


def _moment(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()


def _set_archived(actor: Actor, row: Model, archived: bool) -> Model:
    if (row.archived_at is not None) != archived:
        row.archived_at = timezone.now() if archived else None
        row.save(update_fields=["archived_at"])
        action = "model.archived" if archived else "model.restored"
        _changed(actor, row, action, before={"archived": not archived}, after={"archived": archived})
    return row


def _require_unused(name: str, *, except_for: Model) -> None:
    """Raise AlreadyExists if another model has this name or alias."""
    taken = Model.objects.filter(name=name).exclude(id=except_for.id).exists()
    if taken or ModelAlias.objects.filter(name=name).exclude(model=except_for).exists():
        raise AlreadyExists("model", name)


def _changed(actor: Actor, row: Model, action: str, *, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Audit a change of the model alone and notify the gateways."""
    _record(actor, row, action, before=before, after=after)
    policy_epoch.bump(models=True)


def _record(actor: Actor, row: Model, action: str, *, before: dict[str, Any], after: dict[str, Any]) -> None:
    named = {"model": row.name}
    audit.record(actor, action, ("model", row.id), tenant=row.owner, before=named | before, after=named | after)
