"""How two documents differ, entry by entry and field by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from portal.fleet.document.schema import Adapter, Deployment, Fleet, Model, Pool

Action = Literal["add", "change", "archive"]
Kind = Literal["pool", "model", "deployment", "adapter"]
#: How the digest of what runs is called: an adapter's ``revision`` is the commit of its repository.
_RUN_AS: Mapping[Kind, str] = {"deployment": "revision", "adapter": "digest"}
_SIGNS: Mapping[Action, str] = {"add": "+", "change": "~", "archive": "-"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """A field and its values, as JSON has them; None: it has none."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happens to one entry. ``values``: the fields that differ, of a new entry all that it has."""

    action: Action
    kind: Kind
    name: str
    values: tuple[FieldChange, ...] = ()

    def __str__(self) -> str:
        """Return it as lines: the entry, then each field."""
        lines = [f"{_SIGNS[self.action]} {self.kind} {self.name}"]
        for each in self.values:
            before = "" if self.action == "add" else f"{_shown(each.before)} → "
            lines.append(f"    {each.field}: {before}{_shown(each.after)}")
        return "\n".join(lines)


def between(before: Fleet, after: Fleet, digests: Mapping[str, str], new_digests: Mapping[str, str]) -> list[Change]:
    """Return the changes that lead from one document to the other, pools first.

    The digests are of what each deployment and each adapter runs: one that changes replaces replicas, or an adapter in
    them, also where no field says so.
    """
    found = []
    for kind in ("pool", "model", "deployment", "adapter"):
        old, new = _entries(before, kind), _entries(after, kind)
        for name in sorted(old.keys() | new.keys()):
            was, becomes = old.get(name), new.get(name)
            if kind in _RUN_AS and was is not None and becomes is not None:
                was[_RUN_AS[kind]], becomes[_RUN_AS[kind]] = digests[name][:12], new_digests[name][:12]
            change = _change(kind, name, was, becomes)
            if change is not None:
                found.append(change)
    return found


def text(changes: Iterable[Change]) -> str:
    """Return the changes as lines for a terminal, with their numbers at the end."""
    changes = list(changes)
    counts = {action: sum(each.action == action for each in changes) for action in _SIGNS}
    summary = f"{counts['add']} to add, {counts['change']} to change, {counts['archive']} to archive."
    return "\n".join([*map(str, changes), summary if changes else "Nothing to change."])


def _change(kind: Kind, name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Change | None:
    if new is None:
        return Change(action="archive", kind=kind, name=name)
    known = old or {}
    fields = tuple(
        FieldChange(field=field, before=known.get(field), after=new.get(field))
        for field in [*new, *(each for each in known if each not in new)]
        if known.get(field) != new.get(field)
    )
    if old is None:
        return Change(action="add", kind=kind, name=name, values=fields)
    return Change(action="change", kind=kind, name=name, values=fields) if fields else None


def _entries(fleet: Fleet, kind: Kind) -> dict[str, dict[str, Any]]:
    listed: Mapping[Kind, Sequence[Pool | Model | Deployment | Adapter]] = {
        "pool": fleet.pools,
        "model": fleet.models,
        "deployment": fleet.deployments,
        "adapter": fleet.adapters or (),
    }
    return {each.name: _flat(msgspec.to_builtins(each)) for each in listed[kind]}


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif f"{prefix}{name}" != "name":
            found[f"{prefix}{name}"] = value
    return found


def _shown(value: Any) -> str:
    if value is None or value in ("", []):
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
