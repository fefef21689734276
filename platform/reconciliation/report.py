"""What the last comparison found, for the command, the pages and the API."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q

from billing.ledger import daily_rollups
from billing.models import BootUsage
from reconciliation import boots
from reconciliation.models import BookGap, BootResult, Comparison
from tenants.models import Tenant

MOST_BOOTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """One engine process. ``used_tokens`` by purpose are the exact rows; ``cut_tokens`` what others recorded."""

    id: UUID
    replica_id: str
    generation: int
    model: str
    state: str
    end: str
    started_at: datetime
    ended_at: datetime | None
    counted_at: datetime | None
    counted_tokens: int
    used_tokens: int
    by_purpose: Mapping[str, int]
    cut_requests: int
    cut_tokens: int
    unattributed_tokens: int
    allowed_tokens: int
    lost_tokens: int
    gap_tokens: int
    note: str
    #: Requests that may explain a gap.
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """A tenant's month that differs. For a closed month ``usage_pico`` is what the ledger has for its statement."""

    tenant_id: str
    tenant: str
    month: str
    book: str
    currency: str
    usage_pico: int
    book_pico: int
    usage_tokens: int
    book_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The last comparison, its gaps, and the processes that were asked for."""

    finished_at: datetime | None
    compared_boots: int
    boot_gaps: int
    gap_tokens: int
    lost_tokens: int
    compared_books: int
    book_gaps: int
    boots: tuple[Boot, ...]
    books: tuple[Book, ...]


def read(*, show_all: bool = False) -> Report:
    """Return the last comparison, with the processes that have a gap, or with the newest ones."""
    last = Comparison.objects.exclude(finished_at=None).order_by("-id").first() or Comparison()
    wanted = Q() if show_all else Q(state=BootResult.State.GAP)
    results = BootResult.objects.filter(wanted).order_by("-boot_id")[:MOST_BOOTS]
    return Report(
        finished_at=last.finished_at,
        compared_boots=last.boots,
        boot_gaps=last.boot_gaps,
        gap_tokens=last.gap_tokens,
        lost_tokens=last.lost_tokens,
        compared_books=last.books,
        book_gaps=last.book_gaps,
        boots=tuple(documents(results.select_related("boot__replica__revision__model"))),
        books=books(),
    )


def page(*, state: str | None = None, before: UUID | None = None, limit: int) -> list[Boot]:
    """Return up to ``limit`` processes, the newest first: in a state, or all; started before the one with that id."""
    found = BootResult.objects.order_by("-boot_id").select_related("boot__replica__revision__model")
    if state is not None:
        found = found.filter(state=state)
    if before is not None:
        found = found.filter(boot_id__lt=before)
    return documents(found[:limit])


def books() -> tuple[Book, ...]:
    """Return the tenants' months that differ."""
    found = list(BookGap.objects.order_by("month", "tenant_id", "book", "currency"))
    slugs = dict(Tenant.objects.filter(id__in={each.tenant_id for each in found}).values_list("id", "slug"))
    slugs[daily_rollups.ALL] = "all tenants"
    return tuple(_book(each, slugs.get(each.tenant_id, "")) for each in found)


def documents(results: Iterable[BootResult]) -> list[Boot]:
    """Return the processes of these results, with candidates where there is a gap."""
    found = list(results)
    usage: dict[tuple[UUID, int], list[BootUsage]] = defaultdict(list)
    for each in BootUsage.objects.filter(replica_id__in={result.boot.replica_id for result in found}):
        usage[each.replica_id, each.generation].append(each)
    return [_boot(result, usage[result.boot.replica_id, result.boot.generation]) for result in found]


def _boot(result: BootResult, usage: list[BootUsage]) -> Boot:
    boot = result.boot
    tokens = {each.purpose: each.prompt_tokens + each.completion_tokens for each in usage}
    found = boots.candidates(boot) if result.state == BootResult.State.GAP else []
    return Boot(
        id=boot.id,
        replica_id=str(boot.replica_id),
        generation=boot.generation,
        model=boot.replica.revision.model.name,
        state=result.state,
        end=boot.end,
        started_at=boot.started_at,
        ended_at=boot.ended_at,
        counted_at=boot.counted_at,
        counted_tokens=boot.prompt_tokens + boot.completion_tokens,
        used_tokens=sum(tokens.values()),
        by_purpose=tokens,
        cut_requests=sum(each.cut_requests for each in usage),
        cut_tokens=sum(each.cut_prompt_tokens + each.cut_completion_tokens for each in usage),
        unattributed_tokens=result.unattributed_tokens,
        allowed_tokens=result.allowed_tokens,
        lost_tokens=result.lost_tokens,
        gap_tokens=result.gap_tokens,
        note=result.note,
        candidates=tuple(str(each.id) for each in found),
    )


def _book(each: BookGap, slug: str) -> Book:
    return Book(
        tenant_id=str(each.tenant_id),
        tenant=slug,
        month=each.month,
        book=each.book,
        currency=each.currency,
        usage_pico=int(each.usage_pico),
        book_pico=int(each.book_pico),
        usage_tokens=each.usage_tokens,
        book_tokens=each.book_tokens,
    )
