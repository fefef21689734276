"""What goes on while live pages are open: requests end, agents report their engines; and the sessions of the viewers.

Run in an instance's environment, after ``django.setup()``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

#: Each second: requests that end, of BUSY tenants in turn, and replicas whose load changes.
REQUESTS, BUSY, REPLICAS = 50, 100, 20


def sessions(count: int) -> Iterator[dict[str, str]]:
    """Sign in ``count`` operators of their own, and the owners of as many tenants; yield who, tenant and session."""
    from tenants.models import User

    for number in range(count):
        operator, _ = User.objects.get_or_create(username=f"operator-{number}", defaults={"is_staff": True})
        yield {"who": "operator", "slug": "", "session": _session(operator)}
        owner = User.objects.get(username=f"t{number}-owner")
        yield {"who": "owner", "slug": f"t{number}", "session": _session(owner)}


def _session(user: Any) -> str:
    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.sessions.backends.db import SessionStore

    made = SessionStore()
    made[SESSION_KEY] = str(user.pk)
    made[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    made[HASH_SESSION_KEY] = user.get_session_auth_hash()
    made.save()
    assert made.session_key is not None
    return made.session_key


def go_on() -> None:
    """Store requests and report load each second, until the process is ended."""
    from billing.drain import batch
    from tenants.models import ApiKey
    from workers.models import Replica

    keys = {
        key.project.tenant.slug: key
        for key in ApiKey.objects.select_related("project__tenant").filter(project__tenant__slug__startswith="t")
    }
    busy = [keys[f"t{number}"] for number in range(BUSY)]
    replicas = list(Replica.objects.order_by("id").values_list("id", flat=True))
    second = 0
    while True:
        started = time.monotonic()
        batch.store([_row(second * REQUESTS + each, busy, replicas) for each in range(REQUESTS)], {}, node="bench")
        chosen = [replicas[(second * REPLICAS + each) % len(replicas)] for each in range(REPLICAS)]
        Replica.objects.filter(id__in=chosen).update(running_requests=second % 9, kv_usage=second % 10 / 10)
        second += 1
        time.sleep(max(0.0, 1.0 - (time.monotonic() - started)))


def _row(number: int, keys: list[Any], replicas: list[UUID]) -> Any:
    from billing.ledger.usage_rows import UsageRow
    from tenants.ids import KeyId, ProjectId, ReplicaId, RequestId, RevisionId, TenantId, new_id

    key, now = keys[number % len(keys)], datetime.now(UTC)
    return UsageRow(
        id=RequestId(new_id()), tenant_id=TenantId(key.tenant_id), project_id=ProjectId(key.project_id),
        key_id=KeyId(key.id), purpose="tenant", endpoint="/v1/chat/completions", model_name=f"model-{number % 3}",
        revision_id=RevisionId(UUID(int=1)), replica_id=ReplicaId(replicas[number % len(replicas)]), started_at=now,
        finished_at=now, state="complete", http_status=200, stream=False, cache_result="miss", cache_reason="",
        route_reason="prefix", prompt_tokens=number % 900 + 1, cached_prompt_tokens=number % 300,
        completion_tokens=number % 200 + 1, tokens_source="engine", avoided_prompt_tokens=0,
        avoided_cached_prompt_tokens=0, avoided_completion_tokens=0, avoided_engine_ms=0.0, source_id=None,
        client_request_id="", ttft_ms=30.0 + number % 37 * 7, duration_ms=840.0,
        replica_generation=1, finish_reason="stop",
    )  # fmt: skip
