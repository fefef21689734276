"""Compare every engine process with the usage of its requests, and record what was lost with those that were killed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q, QuerySet, Sum
from django.utils import timezone

from billing.drain import batch
from billing.ledger.usage_rows import UsageRow
from billing.models import BootUsage, UsageRecord
from reconciliation import verdict
from reconciliation.models import BootResult
from reconciliation.verdict import Counts, Evidence, Verdict
from tenants.ids import PLATFORM_SLUG, first_id_at, new_id
from tenants.models import Project
from workers.models import EngineBoot

#: After the end of a process, how long its last requests may take to be stored: slow clients, drains behind.
SETTLE = dt.timedelta(minutes=10)
#: How long after its end a process is compared again, in case requests of it are stored late.
COMPARED = dt.timedelta(days=2)
#: Results and counters of processes that ended earlier are deleted.
KEPT = dt.timedelta(days=400)
#: Of an engine that never said how long a prompt and a completion may be.
ASSUMED_CONTEXT_TOKENS = 131_072
#: Times of different machines' clocks, and of the scrape and its writing, may differ by this much.
CLOCKS = dt.timedelta(seconds=5)
#: A request was accepted at most so long before its engine started.
LONGEST_REQUEST = dt.timedelta(hours=24)
MOST_CANDIDATES = 20
_MOST_TOKENS = 2**31 - 1
_NO_KEY = UUID(int=0)
_EXACT = Q(tokens_source="engine", state__in=("complete", "refused"))


def compare(*, settle: dt.timedelta = SETTLE, since: dt.datetime | None = None) -> int:
    """Compare all processes that run or ended lately, or since a moment; return how many. Idempotent."""
    now = timezone.now()
    boots = EngineBoot.objects.filter(
        Q(ended_at=None) | Q(ended_at__gt=since or now - COMPARED) | Q(result=None) | Q(result__state__in=_UNSETTLED)
    )
    identities = list(boots.order_by("id").values_list("id", flat=True))
    for identity in identities:
        _compare(identity, now, settle)
    EngineBoot.objects.filter(ended_at__lt=now - KEPT).delete()
    return len(identities)


_UNSETTLED = (BootResult.State.SETTLING, BootResult.State.GAP, BootResult.State.RUNNING)


def candidates(boot: EngineBoot) -> list[UsageRecord]:
    """Return requests that may explain a gap: those that were cut short, then the last ones."""
    rows = _rows(boot)
    cut = list(rows.exclude(_EXACT).order_by("-finished_at")[:MOST_CANDIDATES])
    last = rows.filter(_EXACT).exclude(purpose=UsageRecord.Purpose.LOST).order_by("-finished_at")
    return [*cut, *last[: MOST_CANDIDATES - len(cut)]]


@transaction.atomic
def _compare(boot_id: UUID, now: dt.datetime, settle: dt.timedelta) -> None:
    """Compare one process. Its row is locked, so that two comparisons at once record a loss once."""
    boot = (
        EngineBoot.objects.select_for_update(of=("self",), no_key=True)
        .select_related("replica__revision__model")
        .get(id=boot_id)
    )
    before = BootResult.objects.filter(boot=boot).first()
    found = _evidence(boot)
    judged = _judge(boot, found, before, now, settle)
    if judged.lost.tokens and boot.ended_at is not None and now - boot.ended_at >= SETTLE:
        _record_lost(boot, judged.lost)
    values = {
        "state": judged.state,
        "gap_tokens": judged.gap_tokens,
        "unattributed_tokens": judged.unattributed_tokens,
        "allowed_tokens": judged.allowed_tokens,
        "lost_tokens": judged.lost.tokens or found.lost.tokens,
        "note": judged.note[:500],
        "compared_at": now,
    }
    if before is None or before.marked_at is None or now - before.marked_at >= max(settle, SETTLE):
        values |= {
            "marked_at": now,
            "marked_counted_tokens": found.counted.tokens,
            "marked_used_tokens": found.used.tokens,
        }
    BootResult.objects.update_or_create(boot=boot, defaults=values)


def _judge(
    boot: EngineBoot, found: Evidence, before: BootResult | None, now: dt.datetime, settle: dt.timedelta
) -> Verdict:
    if not boot.whole:
        return Verdict(state="partial", note="it ran before its counters were kept")
    if boot.ended_at is None:
        if before is None or before.marked_at is None or boot.counted_at is None:
            return Verdict(state="running")
        if boot.counted_at - before.marked_at < max(settle, SETTLE):  # the agent is silent, or the mark is young
            return Verdict(
                state=before.state if before.state == "gap" else "running",  # type: ignore[arg-type]
                gap_tokens=before.gap_tokens,
                note=before.note,
            )
        return verdict.of_running(
            found, counted_before=before.marked_counted_tokens, used_before=before.marked_used_tokens
        )
    if now - boot.ended_at < settle:
        return Verdict(state="settling")
    return verdict.of_orderly(found) if boot.end == EngineBoot.End.ORDERLY else verdict.of_killed(found)


def _evidence(boot: EngineBoot) -> Evidence:
    counted = Counts(
        prompt=boot.prompt_tokens,
        completion=boot.completion_tokens,
        sequences=boot.finished_sequences,
        cached=boot.cached_prompt_tokens,
    )
    sums = {
        each.purpose: each for each in BootUsage.objects.filter(replica_id=boot.replica_id, generation=boot.generation)
    }
    lost = sums.pop(UsageRecord.Purpose.LOST.value, BootUsage())
    rows = list(sums.values())
    used = Counts(
        prompt=sum(each.prompt_tokens for each in rows),
        completion=sum(each.completion_tokens for each in rows),
        sequences=sum(each.sequences for each in rows),
        cached=None if any(each.shared_requests for each in rows) else sum(each.cached_prompt_tokens for each in rows),
    )
    cut = Counts(
        prompt=sum(each.cut_prompt_tokens for each in rows),
        completion=sum(each.cut_completion_tokens for each in rows),
        sequences=sum(each.cut_sequences for each in rows),
    )
    exceeds = used.prompt > counted.prompt or used.completion > counted.completion
    return Evidence(
        counted=counted,
        used=used,
        cut=cut,
        late=_late(boot) if exceeds and boot.end == EngineBoot.End.KILLED else Counts(),
        lost=Counts(prompt=lost.prompt_tokens, completion=lost.completion_tokens),
        open_sequences=boot.open_sequences,
        context_tokens=boot.replica.context_tokens
        or boot.replica.revision.context_length_tokens
        or ASSUMED_CONTEXT_TOKENS,
    )


def _late(boot: EngineBoot) -> Counts:
    """Return the exact rows that ended about or after the last scrape."""
    rows = _rows(boot).filter(_EXACT).exclude(purpose=UsageRecord.Purpose.LOST)
    if boot.counted_at is not None:
        rows = rows.filter(finished_at__gte=boot.counted_at - CLOCKS)
    prompt = Sum((F("prompt_tokens") + F("cached_prompt_tokens")) * F("prompt_copies"), default=0)
    found: Mapping[str, int] = rows.aggregate(prompt=prompt, completion=Sum("completion_tokens", default=0))
    return Counts(prompt=found["prompt"], completion=found["completion"])


def _rows(boot: EngineBoot) -> QuerySet[UsageRecord]:
    """Return the usage of a process, bounded by time, so that only the partitions of its months are read."""
    end = boot.ended_at or timezone.now()
    return UsageRecord.objects.filter(
        id__gte=first_id_at(boot.started_at - LONGEST_REQUEST),
        id__lt=first_id_at(end + CLOCKS),
        replica_id=boot.replica_id,
        replica_generation=boot.generation,
    )


def _record_lost(boot: EngineBoot, lost: Counts) -> None:
    """Store what an engine did for requests whose answers nobody received: usage of the platform that costs nothing."""
    project = Project.objects.get(tenant__slug=PLATFORM_SLUG, slug="default")
    revision = boot.replica.revision
    assert boot.ended_at is not None
    row = UsageRow(
        id=new_id(),
        tenant_id=project.tenant_id,
        project_id=project.id,
        key_id=_NO_KEY,
        purpose=UsageRecord.Purpose.LOST.value,
        endpoint="",
        model_name=revision.model.name,
        revision_id=revision.id,
        replica_id=boot.replica_id,
        started_at=boot.started_at,
        finished_at=boot.ended_at,
        state="interrupted",
        http_status=0,
        stream=False,
        cache_result="bypass",
        cache_reason="lost",
        route_reason="",
        prompt_tokens=min(lost.prompt, _MOST_TOKENS),
        cached_prompt_tokens=0,
        completion_tokens=min(lost.completion, _MOST_TOKENS),
        tokens_source="engine",
        avoided_prompt_tokens=0,
        avoided_cached_prompt_tokens=0,
        avoided_completion_tokens=0,
        avoided_engine_ms=0.0,
        source_id=None,
        ttft_ms=None,
        duration_ms=0.0,
        client_request_id="",
        replica_generation=boot.generation,
        sequences=0,
    )
    batch.store([row], {}, node="")
