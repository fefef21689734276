"""The form that sets the prediction cache of a project or key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.utils.translation import gettext_noop as _

from portal.access.rights.limit_permissions import TargetNames
from portal.forms.base import PageForm, TargetField, choice, whole_number
from portal.forms.policy import CACHE_MODES
from tenants.models import ApiKey, Project
from tenants.policy.cache_settings import LARGEST, CacheOverrides

#: An empty field takes the value of the level above: of the project, or of the tenant's policy.
INHERITED = "inherited"


class CacheSettingForm(PageForm):
    """What overrides the tenant's policy for a project or key."""

    id_prefix = "cache"

    mode = choice(_("Stores"), (("", INHERITED), *CACHE_MODES), required=False)
    ttl_seconds = whole_number(_("Lifetime, in seconds"), LARGEST["ttl_seconds"], empty=INHERITED)
    writes_per_minute = whole_number(_("Stored a minute"), LARGEST["writes_per_minute"], empty=INHERITED)

    def __init__(
        self, data: Mapping[str, Any] | None = None, *, projects: Sequence[Project], keys: Sequence[ApiKey]
    ) -> None:
        super().__init__(data)
        target = TargetField(_("Project or key"))
        target.offer(projects, keys, whole_tenant=False)
        self.fields = {"for": target, **self.fields}

    def clean(self) -> dict[str, Any]:
        """Require a value. Raises ValidationError."""
        if not self.errors and self.overrides() == CacheOverrides():
            raise ValidationError(_("Fill in at least one of “Stores”, “Lifetime, in seconds” and “Stored a minute”."))
        return self.cleaned_data

    def target(self) -> TargetNames:
        """Return the chosen project or key."""
        found: TargetNames = self.cleaned_data["for"]
        return found

    def overrides(self) -> CacheOverrides:
        """Return the setting."""
        return CacheOverrides(mode=self.cleaned_data["mode"], **{name: self.cleaned_data[name] for name in LARGEST})
