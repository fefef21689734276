"""The request before one that had the same prompt, and why its answer did not serve."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from portal.formats.numbers import whole_duration
from portal.reporting.advice import observed, repeats, wording
from routing.prefixes.prompt_sketch import KEPT_SECONDS, MAX_SKETCHES, PromptSketch
from tenants.ids import TenantId
from tenants.models import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class SamePrompt:
    """What is known of the earlier request. ``text`` says why it did not serve, and what would change that.

    ``earlier_id`` is None if no request that is known had the same prompt.
    """

    earlier_id: UUID | None
    title: str
    text: str


def before(tenant: Tenant, request_id: UUID) -> SamePrompt | None:
    """Explain why an engine ran a request, by the last ones with its prompt; None if nothing is known.

    Reads what row-level security shows, so within ``as_tenant``. Hearth keeps hashes of a tenant's newest prompts only.
    """
    sketches = observed.sketches_of(TenantId(tenant.id)) or []
    own = next((each for each in sketches if each.request_id == request_id), None)
    if own is None:
        return None
    earlier = [each for each in sketches if each.whole == own.whole and each.request_id < request_id]
    if not earlier:
        return _first(TenantId(tenant.id), own)
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


def _first(tenant_id: TenantId, own: PromptSketch) -> SamePrompt | None:
    """Explain a miss whose prompt none of the requests had that are known; one that bypassed the cache has a reason."""
    ran = next((each.ran for each in observed.with_usage(tenant_id, [own])), None)
    if ran is None or ran.cache_result != "miss":
        return None
    title, text = wording.of_first_prompt(MAX_SKETCHES, whole_duration(KEPT_SECONDS))
    return SamePrompt(earlier_id=None, title=title, text=text)
