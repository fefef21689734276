"""What each key used of each model in a month, at list prices: the appendix of an invoice."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Count, Q, Sum

from billing.invoices.content import Usage
from billing.ledger import ledger
from billing.models import UsageRecord
from billing.reports.statements import Month
from tenants.models import ApiKey, Project

_COUNTED = ("prompt_tokens", "cached_prompt_tokens", "completion_tokens", "amount_pico")


def read(month: Month, usage_pico: int) -> tuple[Usage, ...] | None:
    """Return the usage that the month's statement charges, by project, key and model.

    None if it does not sum to ``usage_pico``: the month's requests are no longer kept.
    """
    billed = month.billed
    own = Q(id__gte=billed.first, id__lt=billed.behind)
    late = ledger.late_postings(billed)
    elsewhere = [each for posting in late if posting.billed_month != billed.name for each in posting.request_ids]
    adjusted = [each for posting in late if posting.billed_month == billed.name for each in posting.request_ids]
    rows = UsageRecord.objects.filter(
        tenant_id=month.tenant.id, purpose=UsageRecord.Purpose.TENANT, refusals=0, amount_pico__isnull=False
    )
    sums: dict[tuple[UUID, UUID, str], list[int]] = {}
    parts = [rows.filter(own).exclude(id__in=elsewhere)]
    if adjusted:
        parts.append(rows.filter(id__gte=min(adjusted), id__lte=max(adjusted), id__in=adjusted))
    for part in parts:
        grouped = part.values("project_id", "key_id", "model_name").annotate(
            requests=Count("id"), **{f"sum_{name}": Sum(name, default=0) for name in _COUNTED}
        )
        for group in map(dict[str, Any], grouped.order_by()):
            found = sums.setdefault((group["project_id"], group["key_id"], group["model_name"]), [0] * 5)
            for place, name in enumerate(("requests", *(f"sum_{each}" for each in _COUNTED))):
                found[place] += int(group[name])
    if sum(each[4] for each in sums.values()) != usage_pico:
        return None
    return _named(sums)


def _named(sums: dict[tuple[UUID, UUID, str], list[int]]) -> tuple[Usage, ...]:
    projects = dict(Project.objects.filter(id__in={key[0] for key in sums}).values_list("id", "slug"))
    keys = {
        identity: f"{name} (hk_{public_id})"
        for identity, name, public_id in ApiKey.objects.filter(id__in={key[1] for key in sums}).values_list(
            "id", "name", "public_id"
        )
    }
    found = [
        Usage(
            project=projects.get(project, str(project)),
            key=keys.get(key, str(key)),
            model=model,
            requests=requests,
            prompt_tokens=prompt,
            cached_prompt_tokens=cached,
            completion_tokens=completion,
            amount_pico=pico,
        )
        for (project, key, model), (requests, prompt, cached, completion, pico) in sums.items()
    ]
    return tuple(sorted(found, key=lambda each: (each.project, each.key, each.model)))
