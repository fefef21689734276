"""What every form of the portal has: ids, plain errors next to their fields, and fields of numbers and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.utils import translation
from django.utils.text import format_lazy
from django.utils.translation import gettext, gettext_lazy, gettext_noop

from portal.access.rights.limit_permissions import TargetNames
from tenants import error_text
from tenants.errors import AlreadyExists, BadName, NotAllowed, NotFound, TenantError
from tenants.models import ApiKey, Project

CHOOSE = gettext_noop("Choose one of the list.")

#: A choice's value and its words.
Choice = tuple[str, str]


class Names(forms.CharField):
    """A text of names with commas or spaces between them."""

    def prepare_value(self, value: Any) -> Any:
        """Return the text for a list of names."""
        return ", ".join(value) if isinstance(value, list | tuple) else value

    def clean(self, value: Any) -> tuple[str, ...]:
        """Return the names."""
        return tuple(super().clean(value).replace(",", " ").split())


class PageForm(forms.Form):
    """A form of a page. Shown again after an error, it has what was typed and the focus on the first wrong field."""

    #: Begins the ids of the form's fields, which must be unique on the page.
    id_prefix: ClassVar[str]
    #: The form's field for each name that an error of ``tenants`` carries.
    fields_of_errors: ClassVar[Mapping[str, str]] = {}

    def __init__(self, data: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(data, auto_id=f"{self.id_prefix}-%s", label_suffix="", **options)
        if translation.get_language() != settings.LANGUAGE_CODE:
            for field in self.fields.values():
                _translate(field)

    def add_error(self, field: str | None, error: Any) -> None:
        """Add an error, and put the focus on the first field that has one."""
        super().add_error(field, error)
        wrong = [each for name, each in self.fields.items() if name in self.errors]
        for each in wrong:
            each.widget.attrs.pop("autofocus", None)
        if wrong:
            wrong[0].widget.attrs["autofocus"] = True

    def refuse(self, error: TenantError) -> None:
        """Add an error that a change of ``tenants`` raised, next to its field. Raises ``error`` if it is no such."""
        match error:
            case BadName(kind, name, allowed):
                field, problem = (
                    self.fields_of_errors.get(kind, kind),
                    gettext("“%(name)s” is not valid. Use %(allowed)s.") % {"name": name, "allowed": allowed},
                )
            case NotAllowed(kind, name, state):
                text = gettext("The %(kind)s %(name)s is %(state)s.") % {"kind": kind, "name": name, "state": state}
                problem = f"{text} {error_text.next_step(error)}".strip()
                field = self.fields_of_errors.get(kind, kind)
            case NotFound("model" as kind, name):
                field, problem = kind, gettext("There is no model %(name)s that this tenant may call.") % {"name": name}
            case AlreadyExists(kind, name):
                field, problem = (
                    self.fields_of_errors.get(kind, kind),
                    gettext("There is a %(kind)s %(name)s already.") % {"kind": kind, "name": name},
                )
            case _:
                raise error
        self.add_error(field if field in self.fields else None, problem)


def _translate(field: forms.Field) -> None:
    """Show a field's words, which ``gettext_noop`` marks, in the reader's language."""
    field.label, field.help_text = gettext(str(field.label or "")), gettext(str(field.help_text))
    field.error_messages = {code: gettext(str(words)) for code, words in field.error_messages.items()}
    if "placeholder" in field.widget.attrs:
        field.widget.attrs["placeholder"] = gettext(field.widget.attrs["placeholder"])
    if isinstance(field, forms.ChoiceField):
        choices: Any = field.choices
        field.choices = [(value, gettext(str(words))) for value, words in choices]


def whole_number(
    label: str, largest: int, *, smallest: int = 0, empty: str = "", required: bool = False, help_text: str = ""
) -> forms.IntegerField:
    """Return a field for a whole number. ``empty`` says what an empty field means."""
    # a class has it before there is a reader
    text = gettext_lazy("Enter a whole number from {least} to {most}.")
    if empty:
        text = gettext_lazy("Enter a whole number from {least} to {most}, or nothing for {empty}.")
    problem = format_lazy(text, least=f"{smallest:,}", most=f"{largest:,}", empty=empty)
    return forms.IntegerField(
        label=label,
        required=required,
        min_value=smallest,
        max_value=largest,
        help_text=help_text,
        error_messages=dict.fromkeys(("invalid", "min_value", "max_value", "required"), problem),
        widget=forms.NumberInput({"placeholder": empty} if empty else {}),
    )


def choice(label: str, choices: Sequence[Choice], *, required: bool = True, help_text: str = "") -> forms.ChoiceField:
    """Return a field for one of several values."""
    return forms.ChoiceField(
        label=label,
        choices=choices,
        required=required,
        help_text=help_text,
        error_messages={"invalid_choice": CHOOSE, "required": CHOOSE},
    )


class TargetField(forms.CharField):
    """A tenant, project or key: ``tenant``, ``project:<slug>`` or ``key:<id>``, read as TargetNames.

    Whether it exists, and whether the user may change it, ``limit_permissions.target_for`` decides.
    """

    def __init__(self, label: str) -> None:
        super().__init__(label=gettext(label), widget=forms.Select, error_messages={"required": gettext(CHOOSE)})

    def offer(self, projects: Sequence[Project], keys: Sequence[ApiKey], *, whole_tenant: bool) -> None:
        """Set the choices."""
        assert isinstance(self.widget, forms.Select)
        first = [("tenant", gettext("the whole tenant"))] if whole_tenant else []
        self.widget.choices = [
            *first,
            *(
                (f"project:{project.slug}", gettext("project %(slug)s") % {"slug": project.slug})
                for project in projects
            ),
            *((f"key:{key.id}", gettext("key %(name)s") % {"name": key.name}) for key in keys),
        ]

    def clean(self, value: Any) -> TargetNames:
        """Return the target. Raises ValidationError."""
        kind, _, name = super().clean(value).partition(":")
        if kind == "tenant" and not name:
            return TargetNames()
        if kind == "project" and name:
            return TargetNames(project=name)
        if kind == "key":
            with suppress(ValueError):
                return TargetNames(key=UUID(name))
        raise ValidationError(CHOOSE)
