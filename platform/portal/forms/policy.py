"""The form of a tenant's policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from portal.formats.numbers import size, whole_duration
from portal.forms.base import Choice, Names, PageForm, choice, whole_number
from tenants.models import TenantPolicy
from tenants.registry import LARGEST, SMALLEST

CACHE_MODES: Sequence[Choice] = (
    ("off", "nothing"),
    ("deterministic", _("deterministic answers")),
    ("all", _("all answers")),
)
CACHE_SCOPES: Sequence[Choice] = (
    ("tenant", _("the whole tenant")),
    ("project", _("each project on its own")),
    ("key", _("each key on its own")),
)
SESSION_AFFINITIES: Sequence[Choice] = (
    ("cheapest", _("where it costs everybody least")),
    ("strict", _("at its home while that is ready")),
)
#: Fields that may be empty, which means unlimited or none. Any other empty field stays as it is.
MAY_BE_EMPTY = frozenset({"cache_writes_per_minute", "session_headers"})
PRIORITIES: Sequence[Choice] = (("low", "low"), ("standard", "standard"), ("high", "high"))


def _number(name: str, label: str, help_text: str, **options: Any) -> forms.IntegerField:
    return whole_number(label, LARGEST[name], help_text=help_text, **options)


class PolicyForm(PageForm):
    """What a tenant may do. Fields that are missing or empty stay as they are."""

    id_prefix = "policy"

    cache_mode = choice(
        _("What the prediction cache stores"),
        CACHE_MODES,
        required=False,
        help_text=_("Deterministic answers are those with temperature 0, top_k 1 or a seed."),
    )
    cache_scope = choice(
        _("Who shares stored answers and warm prefixes"),
        CACHE_SCOPES,
        required=False,
        help_text=_("Tenants never share with each other."),
    )
    cache_ttl_seconds = _number(
        "cache_ttl_seconds", _("Lifetime of a stored answer, in seconds"), _("Older answers are not served.")
    )
    cache_entry_bytes = _number(
        "cache_entry_bytes", _("Largest answer that is stored, in bytes"), _("Compressed; larger ones are served only.")
    )
    cache_quota_bytes = _number(
        "cache_quota_bytes",
        _("All stored answers together, in bytes"),
        _("Compressed; the least recently used make room for new ones."),
    )
    cache_writes_per_minute = _number(
        "cache_writes_per_minute",
        _("Answers that one key may store per minute"),
        _("Further answers are served but not stored."),
        empty="unlimited",
    )
    salt_epoch = _number(
        "salt_epoch",
        _("Cache epoch"),
        _("A higher number empties both of the tenant's caches, on every engine. It cannot be lowered again."),
        smallest=1,
    )
    queue_seconds = _number(
        "queue_seconds",
        _("Longest wait for a replica, in seconds"),
        _("With 0 no request waits for a replica to start."),
    )
    queue_requests = _number(
        "queue_requests", _("Requests that may wait per gateway process"), _("Further ones are refused with 503.")
    )
    queue_bytes = _number(
        "queue_bytes", _("Size of all waiting requests per gateway process, in bytes"), _("They wait in memory.")
    )
    idempotency_bytes_per_hour = _number(
        "idempotency_bytes_per_hour",
        _("Answers stored for Idempotency-Keys, in bytes per hour"),
        _("Compressed; four times as much in 24 hours. Then new keys are refused."),
    )

    session_headers = Names(
        label=_("Headers that name a session"),
        required=False,
        help_text=_("Separated by commas; the first one present in a request counts."),
    )
    session_ttl_seconds = _number(
        "session_ttl_seconds",
        _("Lifetime of a session without a request, in seconds"),
        _("Then it has no home. With 0 no request belongs to a session."),
    )
    session_affinity = choice(
        _("Where a session's request runs"),
        SESSION_AFFINITIES,
        required=False,
        help_text=_("The first usually is the home, too, and others wait less."),
    )
    priority = choice(
        _("Class of its requests"),
        PRIORITIES,
        required=False,
        help_text=_("While every replica is full, waiting requests of a higher class are served first."),
    )
    weight = _number(
        "weight",
        _("Share among the tenants of its class"),
        _("While every replica is full, a tenant with 2 gets twice the tokens of one with 1."),
        smallest=SMALLEST["weight"],
    )

    def __init__(self, data: Mapping[str, Any] | None = None, *, policy: TenantPolicy) -> None:
        super().__init__(data, initial={name: getattr(policy, name) for name in self.base_fields})
        for name, field in self.fields.items():
            value = getattr(policy, name)
            if name.endswith("bytes") or "bytes_per" in name:
                field.help_text += " " + gettext("Now %(value)s.") % {"value": size(value)}
            elif name.endswith("_seconds") and value >= 60:
                field.help_text += " " + gettext("Now %(value)s.") % {"value": whole_duration(value)}

    def changes(self) -> dict[str, Any]:
        """Return the fields to change, as ``registry.set_policy`` takes them."""
        return {
            name: value
            for name, value in self.cleaned_data.items()
            if name in self.data and (value not in {None, ""} or name in MAY_BE_EMPTY)
        }
