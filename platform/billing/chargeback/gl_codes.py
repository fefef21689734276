"""The codes of finance's general ledger: which account lines of a class and a model are booked to.

The most exact code counts: that of class and model, of the model, of the class, then the one for all. Cache writes and
reasoning have the codes of the prompt and the completion unless they have their own. ``terms`` is what
a plan adds or takes off, ``rounding`` what rounding to cents adds; both fall back to the one for all. ``credit`` is the
platform's account, which gives what cost centres take; it has no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from django.db import transaction

from billing.models import GlCode
from billing.models.chargeback import LONGEST_CODE
from billing.pricing.classes import PARENTS, LineClass
from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName, NotFound

TERMS, ROUNDING, CREDIT = "terms", "rounding", "credit"
#: Classes of lines that are of no model.
WITHOUT_MODEL = (TERMS, ROUNDING, CREDIT)
CLASSES: tuple[str, ...] = (*get_args(LineClass), *WITHOUT_MODEL)
_LONGEST_MODEL = 200
_PARENTS: Mapping[str, str] = {str(name): str(parent) for name, parent in PARENTS.items()}


@dataclass(frozen=True, slots=True)
class Codes:
    """All codes, by class and model."""

    by_key: Mapping[tuple[str, str], str]

    def of(self, line_class: str, model_name: str = "") -> str | None:
        """Return the code of a line; None if there is none."""
        if line_class == CREDIT:
            return self.by_key.get((CREDIT, ""))
        models = ("",) if line_class in WITHOUT_MODEL else (model_name, "")
        classes = [line_class, *([parent] if (parent := _PARENTS.get(line_class)) else []), ""]
        keys = [(name, model) for model in models for name in classes]
        return next((code for key in keys if (code := self.by_key.get(key))), None)


def read() -> Codes:
    """Return all codes."""
    return Codes({(row.line_class, row.model_name): row.code for row in GlCode.objects.all()})


def rows() -> list[GlCode]:
    """Return all codes, by class and model."""
    return list(GlCode.objects.order_by("line_class", "model_name"))


@transaction.atomic
def set_code(actor: Actor, code: str, *, line_class: str = "", model_name: str = "") -> GlCode:
    """Set the code of a class and a model; empty: of any. Idempotent. Raises BadName."""
    text = code.strip()
    if not text or len(text) > LONGEST_CODE or not text.isprintable():
        raise BadName("code", _shown(code), f"1 to {LONGEST_CODE} printable characters")
    _check_key(line_class, model_name)
    row, made = GlCode.objects.select_for_update().get_or_create(
        line_class=line_class, model_name=model_name, defaults={"code": text}
    )
    before = None if made else row.code
    if before == text:
        return row
    GlCode.objects.filter(id=row.id).update(code=text)
    row.code = text
    _record(actor, "gl_code.set", row, before, text)
    return row


@transaction.atomic
def remove(actor: Actor, *, line_class: str = "", model_name: str = "") -> None:
    """Remove the code of a class and a model. Raises BadName, NotFound."""
    _check_key(line_class, model_name)
    row = GlCode.objects.select_for_update().filter(line_class=line_class, model_name=model_name).first()
    if row is None:
        raise NotFound("GL code", f"{line_class or 'any class'} of {model_name or 'any model'}")
    _record(actor, "gl_code.removed", row, row.code, None)
    row.delete()


def _check_key(line_class: str, model_name: str) -> None:
    if line_class and line_class not in CLASSES:
        raise BadName("class", _shown(line_class), f"one of {', '.join(CLASSES)}, or none for all")
    if len(model_name) > _LONGEST_MODEL or not model_name.isprintable():
        raise BadName("model", _shown(model_name), "the name of a model, or none for all")
    if model_name and line_class in WITHOUT_MODEL:
        raise BadName("model", model_name, f"none: {line_class} is of no model")


def _shown(text: str) -> str:
    return text[:LONGEST_CODE].replace("\0", "\\0")


def _record(actor: Actor, action: str, row: GlCode, before: str | None, after: str | None) -> None:
    audit.record(
        actor,
        action,
        ("gl_code", row.id),
        before={"code": before, "class": row.line_class, "model": row.model_name},
        after={"code": after, "class": row.line_class, "model": row.model_name},
    )
