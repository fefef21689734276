"""Models that a document gives another name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from portal.fleet import model_changes
from portal.fleet.document.difference import Change, FieldChange
from portal.fleet.document.entry_errors import about
from portal.fleet.document.schema import Fleet
from portal.fleet.model_changes import ModelChange
from tenants.audit import Actor


def due(wanted: Fleet, now: Fleet) -> dict[str, str]:
    """Return the new name by the old one of each model that is to be renamed: those that still have the old one."""
    present = {each.name for each in now.models}
    return {
        each.renamed_from: each.name
        for each in wanted.models
        if each.renamed_from in present and each.renamed_from is not None and each.name not in present
    }


def with_aliases(wanted: Fleet) -> Fleet:
    """Return the document in which the name before is among the aliases of each renamed model.

    Without that, the next application would take it from the clients that still use it.
    """
    models = [
        each
        if each.renamed_from is None
        else msgspec.structs.replace(each, aliases=sorted({*each.aliases, each.renamed_from}))
        for each in wanted.models
    ]
    return msgspec.structs.replace(wanted, models=models)


def applied(now: Fleet, names: Mapping[str, str]) -> Fleet:
    """Return the fleet as it is, but for the names."""
    models = [
        each
        if each.name not in names
        else msgspec.structs.replace(each, name=names[each.name], aliases=sorted({*each.aliases, each.name}))
        for each in now.models
    ]
    deployments = [msgspec.structs.replace(each, model=names.get(each.model, each.model)) for each in now.deployments]
    return msgspec.structs.replace(now, models=models, deployments=deployments)


def bring_about(actor: Actor, wanted: Fleet, names: Mapping[str, str], warn: Callable[[str], None]) -> None:
    """Rename the models. Raises BadDocument."""
    for at, model in enumerate(wanted.models):
        if model.renamed_from in names and model.renamed_from is not None:
            with about(f"models[{at}].renamed_from"):
                model_changes.change(actor, model.renamed_from, ModelChange(name=model.name), warn=warn)


def shown(changes: Sequence[Change], names: Mapping[str, str]) -> list[Change]:
    """Return the changes of a document with those of names."""
    new_names = {new: old for old, new in names.items()}
    found = []
    for each in changes:
        if each.kind == "model" and each.name in new_names:
            renamed = FieldChange(field="name", before=new_names.pop(each.name), after=each.name)
            found.append(replace(each, values=(renamed, *each.values)))
        else:
            found.append(each)
    for new, old in sorted(new_names.items()):
        name = FieldChange(field="name", before=old, after=new)
        found.append(Change(action="change", kind="model", name=new, values=(name,)))
    return found
