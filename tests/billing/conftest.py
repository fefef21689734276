"""Prices, sums and a real drain process for billing's tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.db import connection
from django.db.models import Sum

from billing.models import LedgerEntry, UsageRecord, UsageRollup
from billing.pricing import prices
from tenants.audit import SYSTEM

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The same money from three sources."""

    usage_pico: int
    rollup_pico: int
    ledger_pico: int


def sums() -> Sums:
    """Sum what tenants were charged, from usage rows, roll-ups and ledger debits."""
    rows = UsageRecord.objects.filter(purpose="tenant").aggregate(total=Sum("amount_pico"))
    rollups = UsageRollup.objects.aggregate(total=Sum("amount_pico"))
    debits = LedgerEntry.objects.filter(account__kind="receivable").aggregate(total=Sum("amount_pico"))
    return Sums(
        usage_pico=int(rows["total"] or 0),
        rollup_pico=int(rollups["total"] or 0),
        ledger_pico=int(debits["total"] or 0),
    )


@pytest.fixture
def demo_prices(db: None) -> None:
    """The demo prices, in force before any request of the test."""
    prices.ensure_demo_prices(SYSTEM, "demo")


@dataclass(frozen=True, slots=True)
class Process:
    """A running program and the file with its output."""

    popen: subprocess.Popen[bytes]
    output: Path

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        self.popen.kill()
        self.popen.wait()

    def stop(self) -> None:
        """Send SIGTERM and wait for a clean exit."""
        self.popen.send_signal(signal.SIGTERM)
        assert self.popen.wait(timeout=30) == 0, self.output.read_text()


@dataclass(slots=True)
class Processes:
    """Real processes of one test, with a data directory and the test database, as role hearth_app."""

    data_dir: Path
    database_url: str
    started: list[Process] = field(default_factory=list)

    @property
    def wal_dir(self) -> Path:
        """The directory of the logs."""
        return self.data_dir / "wal"

    def drain(self) -> Process:
        """Start a drain."""
        return self._start("billing.drain.main")

    def writer(self, tenant_id: object, count: int) -> Process:
        """Start a writer of ``count`` requests (0: unlimited), which prints each one."""
        return self._start("tests.billing.wal.wal_process", str(self.wal_dir), str(tenant_id), str(count))

    def _start(self, module: str, *arguments: str) -> Process:
        environment = os.environ | {"DATABASE_URL": self.database_url, "HEARTH_DATA_DIR": str(self.data_dir)}
        output = self.data_dir / f"output-{len(self.started)}"
        with output.open("wb") as file:
            popen = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.started.append(Process(popen, output))
        return self.started[-1]


@pytest.fixture
def processes(tmp_path: Path, transactional_db: None, app_database_url: str) -> Iterator[Processes]:
    """Real processes on the committed test database; usage is deleted afterwards, because Django's flush does not."""
    name = str(connection.settings_dict["NAME"])
    made = Processes(tmp_path, urlsplit(app_database_url)._replace(path=f"/{name}").geturl())
    made.wal_dir.mkdir()
    try:
        yield made
    finally:
        for process in made.started:
            process.kill()
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE billing_usagerecord")
