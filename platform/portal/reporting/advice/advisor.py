"""What a tenant could change to have more of its prompts cached, and what that would save in a month.

Made of sketches of its prompts, which hold hashes and no text, and of its own usage. A month is the usage of the last
30 days; the sketches say which part of it is concerned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Literal
from uuid import UUID

from django.db.models import F, Sum
from django.utils import timezone

from billing.models import UsageRollup
from billing.pricing import prices
from billing.pricing.rating import Rates
from portal.formats.numbers import whole_duration
from portal.reporting.advice import broken_prefixes, observed, repeats, wording
from portal.reporting.advice.observed import Observed, Ran
from tenants.ids import TenantId
from tenants.models import ApiKey, Project, Tenant

MONTH = timedelta(days=30)
#: Requests of a key and model that advice is based on, at least; and those that one piece of it concerns.
FEWEST_REQUESTS = 20
FEWEST_CONCERNED = 5
SMALLEST_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What was looked at: the requests of one key with one model."""

    project: str
    key: str
    key_id: UUID
    model_name: str
    requests: int
    first_at: datetime
    last_at: datetime

    @property
    def is_enough(self) -> bool:
        """Whether advice may be based on it."""
        return self.requests >= FEWEST_REQUESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to change, and its evidence."""

    kind: Literal["prefix", "repeats"]
    #: ``message`` with its number, for a prefix; else why repeats ran (``portal.reporting.advice.repeats``).
    reason: str
    title: str
    text: str
    traffic: Traffic
    #: Of the requests looked at, those concerned.
    requests: int
    #: Medians: prompt tokens before the point where prompts part, and of equal text behind it. None for repeats.
    shared_tokens: int | None
    behind_tokens: int | None
    #: In a month: prompt tokens that would not be computed, and money in pico-units; None: the model has no price.
    tokens_per_month: int
    pico_per_month: int | None

    @property
    def share(self) -> float:
        """The share of the requests looked at that it concerns."""
        return self.requests / self.traffic.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All advice, what saves most first."""

    advice: tuple[Advice, ...]
    traffic: tuple[Traffic, ...]
    requests: int
    first_at: datetime | None
    last_at: datetime | None
    #: Requests of the last 30 days that ran on no engine, and about how many more had the prompt of an earlier one.
    answered_in_month: int
    repeats_in_month: int
    #: Whether Redis, where sketches are, answered.
    is_available: bool
    currency: str

    @property
    def pico_per_month(self) -> int:
        """What all of it together would save."""
        return sum(each.pico_per_month or 0 for each in self.advice)

    @property
    def has_enough(self) -> bool:
        """Whether there is enough traffic of any key for advice."""
        return any(each.is_enough for each in self.traffic)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Concerned:
    """What one piece of advice concerns, of the requests looked at."""

    kind: Literal["prefix", "repeats"]
    reason: str
    words: Callable[[], tuple[str, str]]
    requests: int
    tokens: int
    pico: int | None
    shared_tokens: int | None = None
    behind_tokens: int | None = None


_Group = tuple[UUID, UUID, str]


def read(tenant: Tenant, project_id: UUID | None = None) -> Report:
    """Return the advice for a tenant, or for one project. Call it behind the tenant's row-level security."""
    sketches = observed.sketches_of(TenantId(tenant.id))
    found = observed.with_usage(TenantId(tenant.id), sketches or [], project_id)
    groups: dict[_Group, list[Observed]] = defaultdict(list)
    for each in found:
        groups[_group_of(each.ran)].append(each)
    traffic = _traffic(groups)
    enough = {group for group, each in traffic.items() if each.is_enough}
    advice: list[Advice] = []
    again = 0.0
    if enough:
        months = _months(tenant, groups)
        concerned = _concerned(tenant, found, enough)
        for group in enough:
            again += months[group] * sum(each.requests for each in concerned[group] if each.kind == "repeats")
            least = max(FEWEST_CONCERNED, SMALLEST_SHARE * len(groups[group]))
            advice += [
                _advice(each, traffic[group], months[group]) for each in concerned[group] if each.requests >= least
            ]
    return Report(
        advice=tuple(sorted(advice, key=lambda each: (-(each.pico_per_month or 0), -each.tokens_per_month))),
        traffic=tuple(sorted(traffic.values(), key=lambda each: -each.requests)),
        requests=len(found),
        first_at=found[0].ran.started_at if found else None,
        last_at=found[-1].ran.started_at if found else None,
        answered_in_month=_answered(tenant, project_id),
        repeats_in_month=round(again),
        is_available=sketches is not None,
        currency=tenant.currency,
    )


def _group_of(ran: Ran) -> _Group:
    return ran.project_id, ran.key_id, ran.model_name


def _traffic(groups: Mapping[_Group, Sequence[Observed]]) -> dict[_Group, Traffic]:
    projects = dict(Project.objects.filter(id__in={group[0] for group in groups}).values_list("id", "slug"))
    keys = dict(ApiKey.objects.filter(id__in={group[1] for group in groups}).values_list("id", "name"))
    return {
        group: Traffic(
            project=projects.get(group[0], ""),
            key=keys.get(group[1], ""),
            key_id=group[1],
            model_name=group[2],
            requests=len(found),
            first_at=found[0].ran.started_at,
            last_at=found[-1].ran.started_at,
        )
        for group, found in groups.items()
    }


def _months(tenant: Tenant, groups: Mapping[_Group, Sequence[Observed]]) -> dict[_Group, float]:
    """Return by which factor the last month's prompt tokens of a group exceed those that were looked at."""
    since = timezone.now() - MONTH
    rows = (
        UsageRollup.objects.filter(tenant_id=tenant.id, starts_at__gte=since)
        .values_list("project_id", "key_id", "model_name")
        .annotate(tokens=Sum(F("prompt_tokens") + F("cached_prompt_tokens")))
    )
    used = {(project, key, model): int(tokens) for project, key, model, tokens in rows.order_by()}
    seen = {group: sum(each.ran.all_prompt_tokens for each in found) for group, found in groups.items()}
    return {group: max(1.0, used.get(group, 0) / tokens if tokens else 1.0) for group, tokens in seen.items()}


def _answered(tenant: Tenant, project_id: UUID | None) -> int:
    """Return how many requests of the last month the prediction cache answered, or a running identical one."""
    found = UsageRollup.objects.filter(tenant_id=tenant.id, starts_at__gte=timezone.now() - MONTH)
    if project_id is not None:
        found = found.filter(project_id=project_id)
    return int(found.aggregate(all=Sum(F("prediction_hits") + F("coalesced_requests"), default=0))["all"])


def _concerned(tenant: Tenant, found: Sequence[Observed], enough: set[_Group]) -> dict[_Group, list[_Concerned]]:
    """Return what was found, by group. All requests of the tenant are compared, because keys may share prefixes."""
    table = prices.table_for([tenant.id], {group[2] for group in enough})
    now = timezone.now()

    def rates(ran: Ran) -> Rates | None:
        price = table.at(tenant.id, ran.model_name, now)
        return None if price is None else price.rates.at(ran.priority)

    parts: dict[_Group, list[_Concerned]] = defaultdict(list)
    breaks: dict[tuple[_Group, int, str], list[broken_prefixes.Break]] = defaultdict(list)
    for broken in broken_prefixes.find(found):
        breaks[_group_of(broken.observed.ran), broken.message, broken.role].append(broken)
    for (group, message, role), of_place in breaks.items():
        parts[group].append(_prefix(message, role, of_place, rates))
    stored_for = repeats.times_to_live(tenant)
    again: dict[tuple[_Group, str, tuple[str, ...]], list[Ran]] = defaultdict(list)
    for repeat in repeats.find(found, stored_for):
        again[_group_of(repeat.observed.ran), repeat.reason, repeat.parameters].append(repeat.observed.ran)
    for (group, reason, parameters), of_reason in again.items():
        parts[group].append(_repeated(reason, parameters, of_reason, rates, stored_for))
    return parts


def _prefix(
    message: int, role: str, found: Sequence[broken_prefixes.Break], rates: Callable[[Ran], Rates | None]
) -> _Concerned:
    shared, behind = (int(median(getattr(each, name) for each in found)) for name in ("shared_tokens", "behind_tokens"))
    return _Concerned(
        kind="prefix",
        reason=" ".join(("message", str(message))),  # for programs: not translated
        words=lambda: wording.of_break(message, role, shared, behind),
        requests=len(found),
        tokens=sum(each.gain_tokens for each in found),
        pico=_sum(
            None if (each := rates(one.observed.ran)) is None else one.gain_tokens * _difference(each) for one in found
        ),
        shared_tokens=shared,
        behind_tokens=behind,
    )


def _repeated(
    reason: str,
    parameters: tuple[str, ...],
    found: Sequence[Ran],
    rates: Callable[[Ran], Rates | None],
    stored_for: repeats.StoredFor,
) -> _Concerned:
    ttl = whole_duration(int(stored_for(found[-1]).total_seconds()))
    return _Concerned(
        kind="repeats",
        reason=f"{reason}:{','.join(parameters)}" if parameters else reason,
        words=lambda: wording.of_repeat(reason, parameters, ttl),
        requests=len(found),
        tokens=sum(each.all_prompt_tokens for each in found),
        pico=0
        if reason in repeats.WITHOUT_A_SETTING
        else _sum(
            None
            if each.amount_pico is None or (of_hit := rates(each)) is None
            else max(0, each.amount_pico - of_hit.prediction_hit_pico)
            for each in found
        ),
    )


def _difference(rates: Rates) -> int:
    return max(0, rates.prompt_pico - rates.cached_prompt_pico)


def _sum(amounts: Iterable[int | None]) -> int | None:
    """Return the sum of those that are known; None if none is."""
    known = [each for each in amounts if each is not None]
    return sum(known) if known else None


def _advice(found: _Concerned, traffic: Traffic, factor: float) -> Advice:
    title, text = found.words()
    return Advice(
        kind=found.kind,
        reason=found.reason,
        title=title,
        text=text,
        traffic=traffic,
        requests=found.requests,
        shared_tokens=found.shared_tokens,
        behind_tokens=found.behind_tokens,
        tokens_per_month=round(found.tokens * factor),
        pico_per_month=None if found.pico is None else round(found.pico * factor),
    )
