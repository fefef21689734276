"""The changes of a model as its page lists them: each with the same as a command, and what takes it back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from catalogue.models import Model
from portal.fleet.model_changes import ModelChange, Retirement
from tenants.errors import NotFound
from tenants.models import AuditEntry

#: Entries of the page.
SHOWN = 20
#: The actions that set the same; the newest of each can be undone, an older one would undo what came later.
_SETS: Mapping[str, str] = {
    "model.aliases_set": "aliases",
    "model.visibility_set": "visibility",
    "model.retirement_set": "retirement",
    "model.archived": "archived",
    "model.restored": "archived",
    "model.renamed": "name",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change. ``command`` is empty for one that no command makes alone; ``undo`` None for one that stays."""

    audit: AuditEntry
    command: str
    undo: ModelChange | None


def read(model: Model, *, most: int = SHOWN) -> list[Entry]:
    """Return the newest changes of a model, newest first."""
    rows = AuditEntry.objects.filter(object_kind="model", object_id=str(model.id)).order_by("-id")
    found, seen = [], set[str]()
    for row in rows[:most]:
        what = _SETS.get(row.action)
        undo = _before(row) if what is not None and what not in seen else None
        found.append(Entry(audit=row, command=_command(row), undo=undo))
        if what is not None:
            seen.add(what)
    return found


def undo_of(model: Model, entry_id: UUID) -> ModelChange:
    """Return the change that takes back an entry of this model. Raises NotFound for one that cannot be undone."""
    for entry in read(model):
        if entry.audit.id == entry_id and entry.undo is not None:
            return entry.undo
    raise NotFound("change", str(entry_id))


def _before(row: AuditEntry) -> ModelChange | None:
    """Return what sets a model back to what it was before this entry."""
    before: dict[str, Any] = row.before or {}
    match row.action:
        case "model.aliases_set":
            return ModelChange(aliases=tuple(before["aliases"]))
        case "model.visibility_set":
            public = before["visibility"] == Model.Visibility.PUBLIC
            return ModelChange(visibility=before["visibility"], tenants=() if public else tuple(before["tenants"]))
        case "model.retirement_set":
            text = before["retires_at"]
            moment = None if text is None else datetime.fromisoformat(text)
            return ModelChange(retirement=Retirement(retires_at=moment, replacement=before["replacement"]))
        case "model.archived" | "model.restored":
            return ModelChange(archived=bool(before["archived"]))
        case "model.renamed":
            return ModelChange(name=before["name"])
    return None


def _command(row: AuditEntry) -> str:
    before: dict[str, Any] = row.before or {}
    after: dict[str, Any] = row.after or {}
    name = str(after.get("model", ""))
    lines: list[list[str]] = []
    match row.action:
        case "model.aliases_set":
            old, new = set(before["aliases"]), set(after["aliases"])
            lines += [["alias", name, alias] for alias in sorted(new - old)]
            lines += [["unalias", alias] for alias in sorted(old - new)]
        case "model.visibility_set" if after["visibility"] == Model.Visibility.PUBLIC:
            lines.append(["share", name, "--public"])
        case "model.visibility_set":
            chosen = [word for slug in after["tenants"] for word in ("--tenant", slug)]
            lines.append(["share", name, *(chosen or ["--private"])])
        case "model.retirement_set" if after["retires_at"] is None:
            lines.append(["retire", name, "--never"])
        case "model.retirement_set":
            successor = ["--replacement", after["replacement"]] if after["replacement"] else []
            moment = datetime.fromisoformat(after["retires_at"])
            lines.append(["retire", name, "--on", f"{moment:%Y-%m-%dT%H:%M}", *successor])
        case "model.archived":
            lines.append(["archive", name])
        case "model.restored":
            lines.append(["restore", name])
        case "model.renamed":
            lines.append(["rename", str(before["name"]), str(after["name"])])
    return "\n".join(shlex.join(["hearth", "model", *line]) for line in lines)
