"""Prometheus gauges of the last comparison of engines, usage and books. The control worker exports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from django.db.models import Count
from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from reconciliation.models import BootResult, Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the last comparison found. ``age_seconds``: since it ended."""

    age_seconds: float
    boot_gaps: int
    gap_tokens: int
    lost_tokens: int
    book_gaps: int
    boots: Mapping[str, int]


GAUGES: tuple[tuple[str, str, Callable[[Proof], float]], ...] = (
    (
        "hearth_usage_compared_age_seconds",
        "Since engines, usage and books were compared.",
        attrgetter("age_seconds"),
    ),
    ("hearth_usage_gap_boots", "Engine processes that do not agree with usage.", attrgetter("boot_gaps")),
    ("hearth_usage_gap_tokens", "Tokens of those that nothing explains, without sign.", attrgetter("gap_tokens")),
    ("hearth_usage_lost_tokens", "Tokens of killed engines that nobody received or pays.", attrgetter("lost_tokens")),
    ("hearth_usage_book_gaps", "Sums of the ledger and the roll-ups that differ from usage.", attrgetter("book_gaps")),
)


def read() -> Proof | None:
    """Return the last comparison; None before the first."""
    last = Comparison.objects.exclude(finished_at=None).order_by("-id").first()
    if last is None or last.finished_at is None:
        return None
    counts = BootResult.objects.values_list("state").annotate(number=Count("pk")).order_by("state")
    return Proof(
        age_seconds=(timezone.now() - last.finished_at).total_seconds(),
        boot_gaps=last.boot_gaps,
        gap_tokens=last.gap_tokens,
        lost_tokens=last.lost_tokens,
        book_gaps=last.book_gaps,
        boots=dict.fromkeys(BootResult.State.values, 0) | dict(counts),
    )


class ProofCollector(Collector):
    """The last comparison as the database has it. ``read`` returns None while the database is unavailable."""

    def __init__(self, read: Callable[[], Proof | None]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, without a value before the first comparison."""
        found = self._read()
        for name, text, of in GAUGES:
            yield GaugeMetricFamily(name, text, None if found is None else of(found))
        boots = GaugeMetricFamily("hearth_engine_boots", "Engine processes by result.", labels=("state",))
        for state, number in ({} if found is None else found.boots).items():
            boots.add_metric((state,), number)
        yield boots
