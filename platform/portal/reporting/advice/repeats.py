"""Find requests that an engine ran although an earlier one had the same prompt, and why they were not cached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from portal.reporting.advice.observed import Observed, Ran
from tenants.models import CacheSetting, Tenant
from tenants.registry import policy_of

#: Earlier requests with the same prompt that one is compared with, the last ones.
MOST_EARLIER = 8
#: Reasons that no setting changes, so there is nothing to save.
WITHOUT_A_SETTING = frozenset({"running", "failed"})

#: How long responses to a request are stored.
StoredFor = Callable[[Ran], timedelta]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One request with the prompt of an earlier one, which an engine ran."""

    observed: Observed
    #: ``bypass:`` and the reason of the bypass; parameters, running, failed, revision, not_stored, expired or gone.
    reason: str
    #: The one that it is compared with.
    earlier: Ran
    #: The fields of the body that differed, for the reason ``parameters``.
    parameters: tuple[str, ...] = ()


def find(requests: Iterable[Observed], stored_for: StoredFor) -> Iterator[Repeat]:
    """Yield the repeats among requests that are in the order of time."""
    by_prompt: dict[bytes, list[Observed]] = {}
    for each in requests:
        earlier = by_prompt.setdefault(each.sketch.whole, [])
        if earlier:
            yield _repeat(each, earlier, stored_for)
        earlier.append(each)
        del earlier[:-MOST_EARLIER]


def _repeat(each: Observed, earlier: Sequence[Observed], stored_for: StoredFor) -> Repeat:
    same = [other for other in earlier if other.sketch.parameters == each.sketch.parameters]
    if not same:
        nearest = min(reversed(earlier), key=lambda other: len(_differing(each, other)))
        parameters = _differing(each, nearest)
        return Repeat(observed=each, reason="parameters", earlier=nearest.ran, parameters=parameters)
    last = same[-1].ran
    if each.ran.cache_result == "bypass":
        return Repeat(observed=each, reason=f"bypass:{each.ran.cache_reason}", earlier=last)
    return Repeat(observed=each, reason=_why_not_found(each.ran, last, stored_for), earlier=last)


def _differing(one: Observed, other: Observed) -> tuple[str, ...]:
    ours, theirs = one.sketch.parameters, other.sketch.parameters
    return tuple(sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)))


def _why_not_found(ran: Ran, earlier: Ran, stored_for: StoredFor) -> str:
    """Return why the response of an earlier request was not found by one with the same body."""
    if earlier.finished_at > ran.started_at:
        return "running"
    if earlier.state != "complete":
        return "failed"
    if earlier.revision_id != ran.revision_id:
        return "revision"
    if earlier.cache_result == "bypass":
        return "not_stored"
    if ran.started_at - earlier.finished_at >= stored_for(ran):
        return "expired"
    return "gone"


def times_to_live(tenant: Tenant) -> StoredFor:
    """Return how long each request's response is stored: by its key's setting, its project's or the tenant's."""
    default = policy_of(tenant).cache_ttl_seconds
    own = {
        each.key_id or each.project_id: each.ttl_seconds
        for each in CacheSetting.objects.filter(tenant=tenant)
        if each.ttl_seconds is not None
    }
    return lambda ran: timedelta(seconds=own.get(ran.key_id, own.get(ran.project_id, default)))
