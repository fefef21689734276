"""A partition is exported before it is retired: the file has every row, can be read back, and is written for good."""

from __future__ import annotations

import csv
import gzip
import io
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db import IntegrityError, connection, transaction
from pytest_django.fixtures import Settings

from billing.ledger import partitions
from billing.ledger.partitions import Partition
from billing.models import UsageExport, UsageRecord
from billing.months import closing
from billing.pricing.prices import DEMO_RATES
from billing.reports import statements
from retention import tasks, usage_export
from retention.models import HeldMonth
from retention.usage_export import NotExported
from tenants import registry
from tenants.audit import SYSTEM
from tenants.ids import TenantId, first_id_at
from tenants.models import Tenant
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

NOON = datetime(2025, 3, 16, 12, 0, tzinfo=UTC)
DAY = partitions.of_day(NOON.date())


@pytest.fixture
def folder(settings: Settings, tmp_path: Path) -> Path:
    settings.USAGE_EXPORT_DIR = tmp_path / "exports"
    return tmp_path / "exports"


@pytest.fixture
def acme(folder: Path) -> Tenant:
    """A tenant with two requests on one day of a month that is closed, and one on the next day."""
    acme = registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    price_from(NOON - timedelta(days=30), DEMO_RATES)
    store(*(row_at(NOON + timedelta(days=days), TenantId(acme.id)) for days in (0, 0, 1)))
    partitions.ensure()
    closing.close(SYSTEM, statements.Month(tenant=acme, year=2025, month=3))
    return acme


def exported(partition: Partition = DAY) -> UsageExport:
    found = usage_export.ensure(partition)
    assert found is not None
    return found


def test_the_hourly_task_exports_each_day_and_then_retires_it(
    acme: Tenant, folder: Path, as_app: Callable[[], None]
) -> None:
    as_app()
    tasks.maintain()
    assert not UsageRecord.objects.exists() and not HeldMonth.objects.exists()
    first, second = UsageExport.objects.order_by("begins_at")
    assert (first.rows, second.rows, first.path) == (2, 1, str(folder / "usage-2025-03-16.csv.gz"))
    assert first.retired_at is not None and second.retired_at is not None
    assert DAY not in partitions.existing()
    checked = subprocess.run(
        ["sha256sum", "--check", "usage-2025-03-16.csv.gz.sha256"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    assert checked.stdout == "usage-2025-03-16.csv.gz: OK\n"
    assert Path(first.path).stat().st_mode & 0o777 == 0o600


def test_a_file_has_a_header_and_reads_back_as_the_same_rows(acme: Tenant) -> None:
    before = list(UsageRecord.objects.filter(id__lt=first_id_at(DAY.end)).order_by("id").values())
    text = gzip.decompress(Path(exported().path).read_bytes()).decode()
    header, *rows = csv.reader(io.StringIO(text))
    assert (tuple(header), len(rows)) == (usage_export.COLUMNS, 2)
    assert not {"client_request_id", "error_message", "tags", "end_user"} & set(header)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE read_back (LIKE billing_usagerecord INCLUDING DEFAULTS)")
        with cursor.copy(f"COPY read_back ({','.join(header)}) FROM STDIN WITH (FORMAT csv, HEADER)") as copy:
            copy.write(text)
    found = UsageRecord.objects.raw("SELECT * FROM read_back ORDER BY id")
    assert [{name: getattr(row, name) for name in before[0]} for row in found] == before


def test_the_same_rows_make_the_same_file_and_a_good_one_is_kept(acme: Tenant, folder: Path) -> None:
    first = exported()
    assert exported() == first
    Path(first.path).write_bytes(b"damaged")
    second = exported()
    assert (second.path, second.sha256) == (str(folder / "usage-2025-03-16-2.csv.gz"), first.sha256)
    assert usage_export.fault(second) == "" and first.sha256 in usage_export.fault(first)


def test_no_partition_with_rows_goes_without_an_export_that_has_them_all(acme: Tenant) -> None:
    with pytest.raises(IntegrityError, match="no export has the 2 requests"), transaction.atomic():
        partitions.retire(DAY)
    exported()
    store(row_at(NOON, TenantId(acme.id)))
    closing.close(SYSTEM, statements.Month(tenant=acme, year=2025, month=4))
    with pytest.raises(IntegrityError, match="no export has the 3 requests"), transaction.atomic():
        partitions.retire(DAY)
    assert exported().rows == 3
    assert partitions.retire(DAY) == 3


def test_an_export_that_fails_keeps_the_partition_and_leaves_no_file(
    acme: Tenant, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "exports").write_text("a file where the folder should be")
    with pytest.raises(NotExported, match="File exists"):
        usage_export.ensure(DAY)
    tasks.maintain()
    assert UsageRecord.objects.count() == 3
    held = HeldMonth.objects.get()
    assert (held.month, "2025-03-16 is not exported" in held.reason) == ("2025-03", True)
    settings.USAGE_EXPORT_DIR = Path("/dev/full/exports")
    with pytest.raises(NotExported, match="Not a directory"):
        usage_export.ensure(DAY)


def test_no_process_changes_an_export(acme: Tenant, as_app: Callable[[], None]) -> None:
    exported()
    as_app()
    with pytest.raises(IntegrityError), transaction.atomic():
        UsageExport.objects.update(sha256="0" * 64)
    with pytest.raises(IntegrityError), transaction.atomic():
        UsageExport.objects.all().delete()


def test_a_day_with_a_request_that_has_no_price_yet_is_not_exported(acme: Tenant, folder: Path) -> None:
    UsageRecord.objects.filter(id=UsageRecord.objects.earliest("id").id).update(
        amount_pico=None, price_version_id=None, currency=""
    )
    with pytest.raises(NotExported, match="1 of its requests have no price yet"):
        usage_export.ensure(DAY)
    assert not UsageExport.objects.exists()
