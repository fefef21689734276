"""Log records of example requests, for billing's tests."""

from __future__ import annotations

import time

from billing.wal.records import CacheResult, End, Purpose, Start, State
from tenants.ids import KeyId, ProjectId, ReplicaId, RequestId, RevisionId, TenantId, new_id

TENANT = TenantId(new_id())
PROJECT = ProjectId(new_id())
KEY = KeyId(new_id())
REVISION = RevisionId(new_id())
REPLICA = ReplicaId(new_id())


def start(
    request_id: RequestId | None = None,
    *,
    tenant_id: TenantId = TENANT,
    purpose: Purpose = "tenant",
    model_name: str = "demo",
    prompt_tokens_estimate: int = 40,
    client_request_id: str = "",
) -> Start:
    """Return the START of a request that begins now."""
    return Start(
        request_id=request_id or RequestId(new_id()),
        tenant_id=tenant_id,
        project_id=PROJECT,
        key_id=KEY,
        purpose=purpose,
        endpoint="chat.completions",
        model_name=model_name,
        revision_id=REVISION,
        started_at_ns=time.time_ns(),
        stream=True,
        prompt_tokens_estimate=prompt_tokens_estimate,
        client_request_id=client_request_id,
        replica_id=REPLICA,
        cache_result="miss",
        cache_reason="",
        route_reason="prefix",
    )


def end(
    request_id: RequestId,
    *,
    state: State = "complete",
    cache_result: CacheResult = "miss",
    tokens: tuple[int, int, int] = (30, 10, 7),
    avoided: tuple[int, int, int] = (0, 0, 0),
) -> End:
    """Return an END; ``tokens`` and ``avoided`` are (uncached prompt, cached prompt, completion)."""
    prompt, cached, completion = tokens
    return End(
        request_id=request_id,
        finished_at_ns=time.time_ns(),
        state=state,
        http_status=502 if state == "engine_error" else 200,
        cache_result=cache_result,
        cache_reason="",
        route_reason="prefix",
        replica_id=None if cache_result in {"hit", "coalesced"} else REPLICA,
        prompt_tokens=prompt,
        cached_prompt_tokens=cached,
        completion_tokens=completion,
        tokens_source="cache" if cache_result in {"hit", "coalesced"} else "engine",
        avoided_prompt_tokens=avoided[0],
        avoided_cached_prompt_tokens=avoided[1],
        avoided_completion_tokens=avoided[2],
        ttft_ms=12.5,
        duration_ms=80.0,
    )
