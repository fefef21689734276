"""The LoRA adapters of a document."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from catalogue import adapters as catalogue
from catalogue.models import Model
from portal.fleet import model_changes
from portal.fleet.document.entry_errors import about
from portal.fleet.document.schema import Adapter
from portal.fleet.model_changes import ModelChange
from tenants.audit import Actor
from tenants.ids import PLATFORM_SLUG
from workers.model_sources import adapters
from workers.model_sources.adapters import AdapterSpec, Base, Checked


def checked(
    wanted: Sequence[Adapter], now: Sequence[Adapter], bases: Mapping[str, Base], notes: list[str]
) -> dict[str, Checked]:
    """Check the adapters of a document, and return what is to be loaded by the adapter's name.

    ``bases``: what the document's models will run, by name and alias. Left out is an adapter that is ``now`` as it
    shall be, unless its folder is on this machine and may have changed. Raises BadDocument.
    """
    present = {each.name: each for each in now}
    found = {}
    for at, entry in enumerate(wanted):
        known = present.get(entry.name)
        same = known is not None and _content(entry) == _content(known)
        if same and not Path(entry.source).is_dir():
            continue
        with about(f"adapters[{at}]"):
            spec = AdapterSpec(
                name=entry.name, source=entry.source, commit=entry.revision, owner=entry.owner, secret=entry.secret
            )
            ready = adapters.check(spec, _base(entry.name, bases))
        notes += ready.notes
        found[entry.name] = ready
    return found


def bring_about(
    actor: Actor, wanted: Sequence[Adapter], before: Sequence[Adapter], fresh: Mapping[str, Checked]
) -> None:
    """Write the entries that differ from what is there. Call it after their models. Raises BadDocument."""
    known = {each.name: each for each in before}
    for at, entry in enumerate(wanted):
        with about(f"adapters[{at}]"):
            if entry.name in fresh:
                adapters.deploy(actor, fresh[entry.name])
            if entry != known.get(entry.name):
                model_changes.change(actor, entry.name, _change(entry, known=entry.name in known))


def prune(actor: Actor, wanted: Sequence[Adapter], claimed: Collection[str]) -> None:
    """Archive the adapters of the platform's models that a document does not name; ``claimed`` aliases go to others."""
    named = {each.name for each in wanted}
    rows = Model.objects.filter(base__owner__slug=PLATFORM_SLUG, archived_at=None).exclude(name__in=named)
    for row in rows.prefetch_related("aliases").order_by("name"):
        kept = tuple(alias.name for alias in row.aliases.all() if alias.name not in claimed)
        model_changes.change(actor, row.name, ModelChange(archived=True, aliases=kept))


def _base(name: str, bases: Mapping[str, Base]) -> Base | None:
    """Return the model of the document that an adapter changes; None if the document does not have it."""
    row = Model.objects.select_related("base").filter(name=name).exclude(base=None).first()
    if row is not None and row.base is not None:
        return bases.get(row.base.name)
    parts = catalogue.split(name)
    return None if parts is None else bases.get(parts[0])


def _content(entry: Adapter) -> tuple[str, ...]:
    return (entry.source, entry.revision, entry.owner)


def _change(entry: Adapter, *, known: bool) -> ModelChange:
    return ModelChange(
        archived=None if known else False,
        visibility=entry.visibility,
        tenants=tuple(entry.tenants),
        aliases=tuple(entry.aliases),
        secret=entry.secret,
    )
