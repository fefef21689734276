"""Write a log as gateways do, or drain it: ``python -m benchmarks.drain.rounds log TENANTS RECORDS`` | ``drain``.

Run in an instance's environment. ``drain`` prints a line of JSON: the fields of
:class:`benchmarks.drain.report.Drained` beside its tenants.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from uuid import UUID

import django
import psutil

from billing.wal.records import CacheResult, End, Start
from tenants.ids import KeyId, ProjectId, ReplicaId, RequestId, RevisionId, TenantId, new_id

#: Each tenant's project, keys in turn, models in turn.
KEYS, MODELS = 4, 3
#: Of ten requests in turn: what the prediction cache said, and why it was passed by.
MISS: tuple[CacheResult, str] = ("miss", "")
HIT: tuple[CacheResult, str] = ("hit", "")
RESULTS: tuple[tuple[CacheResult, str], ...] = (
    *[MISS] * 5,
    *[HIT] * 2,
    ("coalesced", ""),
    ("bypass", "sampled"),
    ("bypass", "no-store"),
)
Customer = tuple[TenantId, ProjectId, list[KeyId]]


def log(directory: Path, tenants: int, records: int) -> None:
    """Write the log of a gateway that has ended, of tenants with a hard budget each that are new."""
    from billing.wal.writer import WalWriter

    customers = [_customer(number) for number in range(tenants)]
    writer = WalWriter(directory, "gateway")
    for number in range(records):
        writer.append(*_request(number, customers[number % tenants]))
    writer.close()


def drain(directory: Path, node: str) -> None:
    """Drain the log, and print how long it took."""
    from django.db import connection

    from billing.drain.drain import Drain
    from billing.models import UsageRecord

    before = UsageRecord.objects.count()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (backend,) = cursor.fetchone()
    drain = Drain(directory, node)
    wall, processor, its = time.perf_counter(), time.process_time(), _cpu_seconds(backend)
    while drain.step():
        pass
    told = {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - processor,
        "postgres_cpu_seconds": _cpu_seconds(backend) - its,
    }
    drain.close()
    print(json.dumps({"records": UsageRecord.objects.count() - before, **told}))


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _customer(number: int) -> Customer:
    from billing.pricing import prices
    from tenants import registry
    from tenants.audit import SYSTEM
    from tenants.keys import keys
    from tenants.models import Project
    from tenants.policy import budgets
    from tenants.policy.policy_target import PolicyTarget

    tenant = registry.create_tenant(SYSTEM, slug=f"t{number}-{time.time_ns():x}", name=f"Tenant {number}")
    budgets.create(SYSTEM, PolicyTarget(tenant=tenant), budgets.BudgetTerms(limit_pico=budgets.LARGEST_LIMIT_PICO))
    project = Project.objects.get(tenant=tenant)
    for model in range(MODELS if number == 0 else 0):
        prices.ensure_demo_prices(SYSTEM, f"model-{model}")
    issued = [KeyId(keys.issue(SYSTEM, project, name=str(each)).key.id) for each in range(KEYS)]
    return TenantId(tenant.id), ProjectId(project.id), issued


def _request(number: int, customer: Customer) -> tuple[Start, End]:
    tenant, project, keys = customer
    result, reason = RESULTS[number % len(RESULTS)]
    ran = result in {"miss", "bypass"}
    request, now = RequestId(new_id()), time.time_ns()
    begun = Start(
        request_id=request,
        tenant_id=tenant,
        project_id=project,
        key_id=keys[number // 7 % KEYS],
        purpose="tenant",
        endpoint="/v1/chat/completions",
        model_name=f"model-{number % MODELS}",
        revision_id=RevisionId(UUID(int=1)),
        started_at_ns=now,
        stream=bool(number % 2),
        prompt_tokens_estimate=900,
        client_request_id="",
        replica_id=ReplicaId(UUID(int=number % 8 + 1)) if ran else None,
        cache_result=result,
        cache_reason=reason,
        route_reason="prefix" if ran else "",
    )
    prompt, cached, completion = number % 900 + 1, number % 300, number % 200 + 1
    ended = End(
        request_id=request,
        finished_at_ns=now + 80_000_000,
        state="complete",
        http_status=200,
        cache_result=result,
        cache_reason=reason,
        route_reason="prefix" if ran else "",
        replica_id=begun.replica_id,
        prompt_tokens=prompt if ran else 0,
        cached_prompt_tokens=cached if ran else 0,
        completion_tokens=completion if ran else 0,
        tokens_source="engine" if ran else "cache",
        avoided_prompt_tokens=0 if ran else prompt,
        avoided_completion_tokens=0 if ran else completion,
        ttft_ms=12.5,
        duration_ms=80.125,
        avoided_cached_prompt_tokens=0 if ran else cached,
        avoided_engine_ms=0.0 if ran else 812.5,
        source_id=None if ran else request,
    )
    return begun, ended


def main() -> None:
    """Do what the arguments say."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")
    django.setup()
    from django.conf import settings

    what, *figures = sys.argv[1:]
    if what == "log":
        log(settings.WAL_DIR, int(figures[0]), int(figures[1]))
    else:
        drain(settings.WAL_DIR, settings.NODE_NAME)


if __name__ == "__main__":
    main()
