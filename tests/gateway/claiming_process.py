"""Run a request under an Idempotency-Key and never finish: for a process that a test kills."""

from __future__ import annotations

import asyncio
import sys
import time
from uuid import UUID

from gateway.idempotency import HEADER, Idempotency
from gateway.messages import Incoming, Outgoing, Trace
from gateway.turns import Turns
from gateway.wire.table import speaking
from tenants.ids import KeyId, ProjectId, TenantId, new_id
from tenants.registry import Policy
from tenants.snapshot import Caller


def caller(tenant_id: str, key_id: str) -> Caller:
    """Return as much of a caller as its keys are kept by."""
    return Caller(
        tenant_id=TenantId(UUID(tenant_id)),
        tenant_slug="",
        project_id=ProjectId(new_id()),
        key_id=KeyId(UUID(key_id)),
        key_public_id="",
        scopes=frozenset(),
        allowed_models=frozenset(),
        trust_group="",
        policy=Policy(),
    )


#: What the process runs; its arguments are those of :func:`claim`.
COMMAND = "import django; django.setup(); from tests.gateway import claiming_process as it; it.main()"


def main() -> None:
    """Run :func:`claim` with the arguments of the command line."""
    asyncio.run(claim(*sys.argv[1:]))


async def claim(url: str, tenant_id: str, key_id: str, path: str, text: str, body: str, seconds: str) -> None:
    """Claim the key ``text`` for so many seconds again and again, say so, and wait to be killed."""
    turns = Turns(url, timeout_seconds=5.0)
    idempotency = Idempotency(turns, hourly_bytes=1 << 20, claim_seconds=float(seconds))
    incoming = Incoming(method="POST", path=path, headers={HEADER: text}, body=body.encode())
    trace = Trace(
        request_id=new_id(),
        request_name="r",
        client_request_id="",
        started_at_ns=time.time_ns(),
        started=0.0,
        wire=speaking(path),
    )

    async def never_done() -> Outgoing:
        print("claimed", flush=True)
        await asyncio.sleep(3600)
        raise AssertionError

    await idempotency.once(caller(tenant_id, key_id), incoming, trace, never_done)
