"""The form in which a person says which e-mails they want."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from notifications.event_types import EventType
from notifications.mail.recipients import LONGEST_ADDRESS
from portal.forms.base import PageForm


class MailForm(PageForm):
    """The address, and the types that are wanted. Those that are not optional are not offered.

    ``address`` None: it is not asked for, because it is changed where it is also verified.
    """

    id_prefix = "mail"
    fields_of_errors = {"e-mail address": "address", "event type": "wanted"}

    address = forms.CharField(
        label=_("Your e-mail address"), max_length=LONGEST_ADDRESS, required=False, help_text=_("Empty: you get none.")
    )
    wanted = forms.MultipleChoiceField(label="E-mails", required=False, widget=forms.CheckboxSelectMultiple)

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        offered: Iterable[EventType],
        refused: Iterable[str] = (),
        address: str | None = "",
    ) -> None:
        self._optional = {each.name: gettext(each.about) for each in offered if each.is_optional}
        wanted = self._optional.keys() - set(refused)
        super().__init__(data, initial={"address": address, "wanted": sorted(wanted)})
        if address is None:
            del self.fields["address"]
        field = self.fields["wanted"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = list(self._optional.items())

    def refusals(self) -> set[str]:
        """Return the names of the types that are not wanted."""
        return self._optional.keys() - set(self.cleaned_data["wanted"])
