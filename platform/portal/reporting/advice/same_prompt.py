"""The request before one that had the same prompt, and why its answer did not serve."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from portal.formats.numbers import whole_duration
from portal.reporting.advice import observed, repeats, wording
from tenants.ids import TenantId
from tenants.models import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class SamePrompt:
    """What is known of the earlier request. ``text`` says why it did not serve, and what would change that."""

    earlier_id: UUID
    title: str
    text: str


def before(tenant: Tenant, request_id: UUID) -> SamePrompt | None:
    """Explain why an engine ran a request, by the last ones with its prompt; None if none is known.

    Reads what row-level security shows, so within ``as_tenant``. Hearth keeps hashes of a tenant's newest prompts only.
    """
    sketches = observed.sketches_of(TenantId(tenant.id)) or []
    own = next((each for each in sketches if each.request_id == request_id), None)
    if own is None:
        return None
    earlier = [each for each in sketches if each.whole == own.whole and each.request_id < request_id]
    compared = sorted(earlier, key=lambda each: each.request_id)[-repeats.MOST_EARLIER :]
    requests = observed.with_usage(TenantId(tenant.id), [*compared, own])
    stored_for = repeats.times_to_live(tenant)
    found = next((each for each in repeats.find(requests, stored_for) if each.observed.ran.id == request_id), None)
    # One that was not looked up had not been answered with the same parameters either.
    if found is None or (found.reason == "parameters" and found.observed.ran.cache_result == "bypass"):
        return None
    ttl = whole_duration(int(stored_for(found.observed.ran).total_seconds()))
    title, text = wording.of_one_repeat(found.reason, found.parameters, ttl)
    return SamePrompt(earlier_id=found.earlier.id, title=title, text=text)
