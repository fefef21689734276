"""The forms of retention: the policy, and the confirmation of an erasure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from portal.forms.base import PageForm, whole_number
from retention.models import RetentionPolicy
from retention.policy import BY_NAME, KINDS


def _kept(name: str, label: str) -> forms.IntegerField:
    kind = BY_NAME[name]
    return whole_number(
        label,
        kind.largest,
        smallest=kind.smallest,
        empty=_("no limit") if kind.for_ever else "",
        required=not kind.for_ever,
        help_text=kind.covers,
    )


class RetentionForm(PageForm):
    """How long each kind of record is kept. An empty field keeps it for ever."""

    id_prefix = "retention"

    requests_months = _kept("requests", _("Requests, in months"))
    events_days = _kept("events", _("Events of the fleet, in days"))
    decisions_days = _kept("decisions", _("Decisions of scaling, in days"))
    deferred_hours = _kept("deferred", _("Deferred requests, in hours"))
    audit_days = _kept("audit", _("Audit log, in days"))

    def __init__(self, data: Mapping[str, Any] | None = None, *, policy: RetentionPolicy) -> None:
        super().__init__(data, initial={kind.field: getattr(policy, kind.field) for kind in KINDS})


class EraseForm(PageForm):
    """The slug of the tenant to erase, typed again."""

    id_prefix = "erase"

    confirm = forms.CharField(label=_("Slug of the tenant"), error_messages={"required": _("Enter the slug.")})

    def __init__(self, data: Mapping[str, Any] | None = None, *, slug: str) -> None:
        super().__init__(data)
        self._slug = slug
        self.fields["confirm"].help_text = gettext("Enter %(slug)s.") % {"slug": slug}

    def clean_confirm(self) -> str:
        """Return the slug. Raises ValidationError unless it is the tenant's."""
        if self.cleaned_data["confirm"] != self._slug:
            raise ValidationError(f"Enter {self._slug} to erase this tenant's personal data.")
        return self._slug
