"""Which models' files nodes have, fetch, or cannot fetch, in numbers and in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db.models import DurationField, ExpressionWrapper, F
from django.db.models.functions import Now

from workers.models import Weights

_State = Weights.State


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsStatus:
    """The files of one model on one node. ``bytes_total`` is None until the hub has said it."""

    id: UUID
    node: str
    model: str
    state: str
    bytes_done: int
    bytes_total: int | None
    folder: str
    error: str
    attempts: int
    #: Until the next attempt; None if it is not waiting for one.
    retry_seconds: float | None

    @property
    def is_ready(self) -> bool:
        """Return whether replicas can start there."""
        return self.state == _State.READY

    @property
    def share(self) -> float | None:
        """Return how much is there, 0 to 1; None if that is not known."""
        return self.bytes_done / self.bytes_total if self.bytes_total else None

    @property
    def words(self) -> str:
        """Return how far it is, or why it fails and what to do."""
        where = f"on node {self.node}"
        if self.state == _State.FAILED:
            again = "" if self.retry_seconds is None else f"; next attempt in {max(0, round(self.retry_seconds))} s"
            return f"files cannot be fetched {where}: {self.error}{again}"
        if self.state == _State.WANTED:
            return f"waiting to fetch files {where}"
        if self.state == _State.READY:
            return f"files are {where}, {_gigabytes(self.bytes_done)}"
        if self.bytes_total is None or self.share is None:
            return f"fetching files {where}"
        if self.bytes_done >= self.bytes_total:
            return f"checking {_gigabytes(self.bytes_total)} {where}"
        return f"fetching {int(100 * self.share)} % of {_gigabytes(self.bytes_total)} {where}"


def by_revision() -> Mapping[UUID, tuple[WeightsStatus, ...]]:
    """Return the files that nodes have or fetch, by revision, each by node."""
    left = ExpressionWrapper(F("next_attempt_at") - Now(), output_field=DurationField())
    rows = Weights.objects.select_related("node", "revision__model").annotate(left=left)
    found: dict[UUID, list[WeightsStatus]] = defaultdict(list)
    for row in rows.order_by("node__name"):
        found[row.revision_id].append(
            WeightsStatus(
                id=row.id,
                node=row.node.name,
                model=row.revision.model.name,
                state=row.state,
                bytes_done=row.bytes_done,
                bytes_total=row.bytes_total,
                folder=row.folder,
                error=row.error,
                attempts=row.attempts,
                retry_seconds=None if row.left is None else row.left.total_seconds(),
            )
        )
    return {revision_id: tuple(each) for revision_id, each in found.items()}


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
