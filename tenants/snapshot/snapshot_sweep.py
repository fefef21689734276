"""The safety net below the policy epoch: find what was written without it, and forget keys that are dead for long.

Such changes come from outside of Hearth's own functions: SQL by hand, or a restored table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tenants import policy_epoch
from tenants.snapshot import snapshot_rows
from tenants.snapshot.snapshot import Snapshot
from tenants.snapshot.snapshot_rows import KeyRow, TenantRules

#: From the end of one sweep to the beginning of the next.
REST_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """What one step has read. ``unseen``: the keys known when the sweep began that are in none of its pages."""

    keys: tuple[KeyRow, ...] = ()
    unseen: tuple[KeyRow, ...] = ()
    tenants: tuple[TenantRules, ...] = ()


class SnapshotSweep:
    """Reads everything again, one page per step, so that no step delays a revocation. Not thread-safe."""

    def __init__(self) -> None:
        self._pages: Iterator[_Page] = iter(())
        self._rests_until = time.monotonic() + REST_SECONDS
        self._resting = True

    def step(self, snapshot: Snapshot) -> Snapshot:
        """Read one page, if it is time; return the snapshot with what differs, or the same if nothing does."""
        if self._resting:
            if time.monotonic() < self._rests_until:
                return snapshot
            self._pages, self._resting = _pages(snapshot.keys), False
        page = next(self._pages, None)
        if page is None:
            self._rests_until, self._resting = time.monotonic() + REST_SECONDS, True
            return snapshot
        if policy_epoch.current() != snapshot.epoch:
            # The page can contain half of a newer change, such as a limit that moved to a key still unknown.
            return snapshot
        # A row that was replaced since the sweep began has been read since.
        gone = [key for key in page.unseen if snapshot.keys.get(key.public_id) is key]
        return snapshot.updated(keys=page.keys, gone=gone, tenants=page.tenants)


def _pages(known: Mapping[str, KeyRow]) -> Iterator[_Page]:
    seen: set[str] = set()
    for keys in snapshot_rows.key_pages():
        seen.update(key.public_id for key in keys)
        yield _Page(keys=tuple(keys))
    yield _Page(unseen=tuple(key for public_id, key in known.items() if public_id not in seen))
    for tenants in snapshot_rows.tenant_pages():
        yield _Page(tenants=tuple(tenants))
