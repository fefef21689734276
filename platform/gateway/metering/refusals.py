"""Record requests that were refused, or failed, before an engine ran them: rows that cost nothing.

A flood of refusals must neither fill the log nor slow the gateway, so each process writes only the first ROWS of a
tenant in a window by themselves. It counts the rest by key, model and code, and at the window's end writes one record
for each group, of its last refusal, with the number of all. Sums are therefore exact; a killed process loses the counts
of one window. A request without a valid key belongs to no tenant and is not recorded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from uuid import UUID

import msgspec

from billing.errors import WalError
from billing.wal.records import End, Start, State
from billing.wal.writer import WalWriter
from gateway.errors import GatewayError, NotCached
from gateway.request import RequestTimeline
from tenants.ids import KeyId, ProjectId, RequestId, RevisionId, TenantId
from tenants.snapshot.snapshot import Caller

log = logging.getLogger(__name__)

WINDOW_SECONDS = 10.0
#: Refusals of one tenant in one window that have a record of their own.
ROWS = 20
#: Groups of one tenant in one window. Refusals beyond are counted in one more, without key, model and code.
GROUPS = 50
MESSAGE_CHARACTERS = 300
#: The id of what a record does not name: the revision of a refusal, and the key and project of the last group.
NO_ID = UUID(int=0)
_OTHER_CODE = "several"
_OTHER_MESSAGE = "Requests that were refused for several reasons, in a window with too many to record each."

#: Project, key, model and code.
_Group = tuple[UUID, UUID, str, str]
_OTHER: _Group = (NO_ID, NO_ID, "", _OTHER_CODE)
_Refusal = tuple[Start, End]


def state_of(error: GatewayError) -> State:
    """Return the state of a request that ended with this error: refused if its client can change that."""
    return "refused" if error.status < 500 or isinstance(error, NotCached) else "engine_error"


class RefusalLog:
    """The refusals of one process. Lives on one event loop."""

    def __init__(self, wal: WalWriter) -> None:
        self._wal = wal
        self._windows: dict[TenantId, _Window] = {}

    def record(self, timeline: RequestTimeline, error: GatewayError) -> None:
        """Record a request that ended with this error, unless it has a record or no known caller. Never raises."""
        caller = timeline.caller
        if caller is None or timeline.has_record:
            return
        timeline.has_record = True
        window = self._windows.get(caller.tenant_id)
        if window is None:
            window = self._windows[caller.tenant_id] = _Window()
            self._close_later(caller.tenant_id)
        refusal = _refusal(caller, timeline, error)
        if window.rows < ROWS and self._write(refusal):
            window.rows += 1
        else:  # also after a failed write: a full log is not tried again in this window
            window.rows = ROWS
            window.count(refusal)

    def close(self) -> None:
        """Write what was counted."""
        for tenant_id in list(self._windows):
            self._write_groups(tenant_id)
        self._windows.clear()

    def _close_later(self, tenant_id: TenantId) -> None:
        asyncio.get_running_loop().call_later(WINDOW_SECONDS, self._close_window, tenant_id)

    def _close_window(self, tenant_id: TenantId) -> None:
        """Write the window's groups and forget it; keep what the log does not take for another window."""
        if tenant_id not in self._windows:  # the log was closed
            return
        if self._write_groups(tenant_id):
            del self._windows[tenant_id]
        else:
            self._close_later(tenant_id)

    def _write_groups(self, tenant_id: TenantId) -> bool:
        groups = self._windows[tenant_id].groups
        for name, refusal in list(groups.items()):
            if not self._write(refusal):
                return False
            del groups[name]
        return True

    def _write(self, refusal: _Refusal) -> bool:
        try:
            self._wal.append(*refusal)
        except WalError as error:
            log.warning("refusals cannot be recorded yet: %s", error)
            return False
        return True


class _Window:
    """One tenant's refusals since the window was opened: rows written, and the last refusal of each group."""

    def __init__(self) -> None:
        self.rows = 0
        self.groups: dict[_Group, _Refusal] = {}

    def count(self, refusal: _Refusal) -> None:
        """Count a refusal in its group, or among all others."""
        start, end = refusal
        name: _Group = (start.project_id, start.key_id, start.model_name, end.error_code)
        if name not in self.groups and len(self.groups) >= GROUPS:
            name, (start, end) = _OTHER, _other(start, end)
        before = self.groups[name][1].refusals if name in self.groups else 0
        self.groups[name] = (start, msgspec.structs.replace(end, refusals=before + 1))


def _refusal(caller: Caller, timeline: RequestTimeline, error: GatewayError) -> _Refusal:
    """Return the records of one refusal. The name of an unknown model stands only in the message."""
    request_id = RequestId(timeline.request_id)
    start = Start(
        request_id=request_id,
        tenant_id=caller.tenant_id,
        project_id=caller.project_id,
        key_id=caller.key_id,
        purpose="tenant",
        endpoint=timeline.endpoint.path,
        model_name=timeline.model,
        revision_id=RevisionId(NO_ID),
        started_at_ns=timeline.started_at_ns,
        stream=False,
        prompt_tokens_estimate=0,
        client_request_id=timeline.client_request_id,
        replica_id=None,
        cache_result="miss",
        cache_reason="",
        route_reason="",
    )
    end = End(
        request_id=request_id,
        finished_at_ns=time.time_ns(),
        state=state_of(error),
        http_status=error.status,
        cache_result="miss",
        cache_reason="",
        route_reason="",
        replica_id=None,
        prompt_tokens=0,
        cached_prompt_tokens=0,
        completion_tokens=0,
        tokens_source="estimated",
        avoided_prompt_tokens=0,
        avoided_completion_tokens=0,
        ttft_ms=None,
        duration_ms=(time.perf_counter() - timeline.started) * 1000,
        error_code=error.code,
        error_message=error.message[:MESSAGE_CHARACTERS],
        refusals=1,
        queue_ms=timeline.queue_seconds * 1000,
        traced=timeline.trace is not None,
    )
    return start, end


def _other(start: Start, end: End) -> _Refusal:
    """Return a refusal without its key, project and model, and without its reason."""
    replace = msgspec.structs.replace
    return (
        replace(start, project_id=ProjectId(NO_ID), key_id=KeyId(NO_ID), model_name=""),
        replace(end, error_code=_OTHER_CODE, error_message=_OTHER_MESSAGE),
    )
