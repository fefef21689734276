"""The form that makes a scrape token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext_noop as _

from portal.forms.base import PageForm, whole_number
from tenants.keys.scrape_tokens import DEFAULT_DAYS, LONGEST_NAME, MOST_DAYS


class ScrapeTokenForm(PageForm):
    """A token's name and lifetime."""

    id_prefix = "token"
    fields_of_errors = {"token name": "name"}

    name = forms.CharField(label=_("Name"), max_length=LONGEST_NAME, help_text=_("Where it is used."))
    days = whole_number(_("Days"), MOST_DAYS, smallest=1, required=True, help_text=_("Until it expires."))

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, initial={"name": "prometheus", "days": DEFAULT_DAYS})
