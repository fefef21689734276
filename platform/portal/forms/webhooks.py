"""The forms of webhook endpoints: a new or changed one, and a range to send again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext_noop as _

from notifications.models import WebhookEndpoint
from notifications.webhooks.addresses import LONGEST_URL
from notifications.webhooks.endpoints import LONGEST_ABOUT
from portal.forms.base import PageForm


class WebhookForm(PageForm):
    """URL, purpose and event types. No type chosen means all."""

    id_prefix = "webhook"
    fields_of_errors = {"webhook URL": "url", "webhook endpoint": "url", "description": "about", "event type": "types"}

    url = forms.CharField(label="URL", max_length=LONGEST_URL, help_text=_("https, at a public address."))
    about = forms.CharField(label=_("What it is for"), max_length=LONGEST_ABOUT, required=False)
    types = forms.MultipleChoiceField(
        label=_("Events"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("None chosen: all, later ones too."),
    )

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        offered: Sequence[str],
        endpoint: WebhookEndpoint | None = None,
    ) -> None:
        initial = {}
        if endpoint is not None:
            initial = {"url": endpoint.url, "about": endpoint.about, "types": endpoint.event_types}
        super().__init__(data, initial=initial)
        types = self.fields["types"]
        assert isinstance(types, forms.MultipleChoiceField)
        types.choices = [(name, name) for name in offered]
