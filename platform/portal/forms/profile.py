"""The form of what a person says about themselves."""

from __future__ import annotations

from zoneinfo import available_timezones

from django import forms
from django.conf import settings
from django.utils.translation import gettext_noop as _

from portal.forms.base import PageForm, choice

#: Regions and UTC, without the aliases beside them.
ZONES = sorted(name for name in available_timezones() if name == "UTC" or ("/" in name and name[:4] != "Etc/"))


class ProfileForm(PageForm):
    """Given name and family name, which lists of people show beside the sign-in name, a time zone and a language."""

    id_prefix = "profile"

    first_name = forms.CharField(
        required=False, max_length=150, label=_("Given name"), widget=forms.TextInput({"autocomplete": "given-name"})
    )
    last_name = forms.CharField(
        required=False, max_length=150, label=_("Family name"), widget=forms.TextInput({"autocomplete": "family-name"})
    )
    time_zone = choice(
        _("Time zone"),
        [("", _("that of the browser")), *((name, name.replace("_", " ")) for name in ZONES)],
        required=False,
        help_text=_("Pages show times, days and months in it."),
    )
    language = choice(_("Language"), [("", _("that of the browser")), *settings.LANGUAGES], required=False)
