"""A process that writes a log until it is killed: ``python -m tests.billing.wal.wal_process DIRECTORY TENANT COUNT``.

It prints the id of every request on standard output once its END is written, and only then. Every tenth request
has no END but two records of progress. COUNT 0 never stops; it begins about a thousand a second.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count
from pathlib import Path
from uuid import UUID

from billing.wal.records import Progress
from billing.wal.writer import WalWriter
from tenants.ids import TenantId
from tests.billing.wal_records import end, start


def main(directory: Path, tenant_id: TenantId, limit: int) -> None:
    """Write requests and print each one."""
    writer = WalWriter(directory, "gateway", segment_bytes=200_000)
    for number in count() if limit == 0 else range(limit):
        begun = start(tenant_id=tenant_id)
        writer.append(begun)
        if number % 10 == 9:
            writer.append(Progress(request_id=begun.request_id, completion_tokens=3, at_ns=time.time_ns()))
            writer.append(Progress(request_id=begun.request_id, completion_tokens=5, at_ns=time.time_ns()))
            os.write(1, f"open {begun.request_id.hex}\n".encode())
        else:
            writer.append(end(begun.request_id))
            os.write(1, f"done {begun.request_id.hex}\n".encode())
        if limit == 0:
            time.sleep(0.0005)
    os.write(1, b"ready\n")
    time.sleep(600)


if __name__ == "__main__":
    main(Path(sys.argv[1]), TenantId(UUID(sys.argv[2])), int(sys.argv[3]))
