"""A closed month outlives its requests, and keeps their figures; so does a statement that an earlier release kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from django.db import IntegrityError, connection, transaction

from billing.errors import RequestsDeleted
from billing.ledger import partitions
from billing.ledger.partitions import Month
from billing.models import FinalStatement, UsageRecord
from billing.months import closing
from billing.pricing.prices import DEMO_RATES
from billing.reports import statements
from tenants.audit import SYSTEM
from tenants.database import rls
from tenants.ids import TenantId, first_id_at, new_id
from tenants.models import Project, Tenant
from tests.billing.conftest import sums
from tests.billing.retired import retire
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

MARCH = datetime(2026, 3, 1, tzinfo=UTC)
MIDDLE = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)


def tenant(slug: str, zone: str = "UTC") -> TenantId:
    return TenantId(Tenant.objects.create(slug=slug, name=slug, billing_timezone=zone).id)


def close(tenant_id: TenantId, number: int) -> None:
    closing.close(SYSTEM, statements.Month(tenant=Tenant.objects.get(id=tenant_id), year=2026, month=number))


def as_app() -> None:
    """Go on as the role that runs Hearth, which owns no table."""
    rls.grant("hearth_app")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE hearth_app")


def test_the_databases_first_id_of_a_moment_is_that_of_python() -> None:
    for moment in (MARCH, MIDDLE + timedelta(milliseconds=1), datetime(2099, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)):
        with connection.cursor() as cursor:
            cursor.execute("SELECT hearth_first_id_at(%s)", [moment])
            assert cursor.fetchone() == (first_id_at(moment),)


def test_a_retired_month_keeps_its_statement_its_ledger_and_its_rollups() -> None:
    acme, ahead = tenant("acme"), tenant("ahead", "Pacific/Kiritimati")
    price_from(MARCH - timedelta(days=9), DEMO_RATES)
    last_hour = datetime(2026, 3, 31, 23, 0, tzinfo=UTC)  # in April, for the tenant that is ahead
    noon = datetime(2026, 3, 31, 12, 0, tzinfo=UTC)
    store(
        row_at(noon, acme, tokens=(1000, 400, 30)),
        row_at(noon, acme, cache_result="hit", tokens=(0, 0, 0), avoided=(5, 0, 3)),
        row_at(last_hour, ahead),
        row_at(noon, TenantId(new_id()), purpose="canary"),
    )
    before, money = statements.statement(acme, 2026, 3), sums()
    as_app()
    partitions.ensure(MIDDLE)
    for tenant_id, month in ((acme, 3), (ahead, 3), (ahead, 4)):
        with pytest.raises(IntegrityError, match="of months that are not closed"):
            retire(Month(2026, 3))
        close(tenant_id, month)
    assert retire(Month(2026, 3)) == 4
    assert retire(Month(2026, 3)) is None
    assert Month(2026, 3) not in {each.month for each in partitions.existing()}
    assert not UsageRecord.objects.exists()
    with rls.as_tenant(acme):
        found = statements.statement(acme, 2026, 3)
        assert replace(found, closed_at=None, revision=None) == before
    assert statements.statement(ahead, 2026, 4).requests == 1
    after = sums()
    assert (after.rollup_pico, after.ledger_pico) == (money.rollup_pico, money.ledger_pico)
    with rls.as_tenant(ahead), pytest.raises(Tenant.DoesNotExist):
        statements.statement(acme, 2026, 3)


def test_late_usage_of_a_retired_month_goes_once_the_month_that_bills_it_is_closed() -> None:
    acme = tenant("acme")
    price_from(MARCH - timedelta(days=9), DEMO_RATES)
    store(row_at(MIDDLE, acme))
    partitions.ensure(MIDDLE)
    close(acme, 3)
    retire(Month(2026, 3))
    late = row_at(MIDDLE, acme)
    store(late)
    assert partitions.ensure(MIDDLE)[0] == "billing_usagerecord_2026_03_16"
    assert UsageRecord.objects.get().id == late.id
    assert statements.statement(acme, 2026, 3).equals_ledger
    with pytest.raises(IntegrityError, match="of months that are not closed"):
        retire(Month(2026, 3))
    close(acme, 4)
    assert retire(Month(2026, 3)) == 1
    assert [line.adjusts_month for line in statements.statement(acme, 2026, 4).lines] == ["2026-03"] * 3


def test_a_statement_that_an_earlier_release_kept_is_read_and_closes() -> None:
    acme = tenant("acme")
    price_from(MARCH - timedelta(days=9), DEMO_RATES)
    store(row_at(MIDDLE, acme))
    before = statements.statement(acme, 2026, 3)
    FinalStatement.objects.create(
        tenant_id=acme,
        year=2026,
        month=3,
        first_id=first_id_at(before.start),
        behind_id=first_id_at(before.end),
        document=msgspec.to_builtins(before),
    )
    partitions.ensure(MIDDLE)
    retire(Month(2026, 3))
    assert statements.statement(acme, 2026, 3) == before
    close(acme, 3)
    assert statements.statement(acme, 2026, 3).lines == before.lines


def test_usage_of_the_last_two_months_is_never_retired() -> None:
    this = partitions.month_of(datetime.now(UTC))
    price_from(this.before(3).begin, DEMO_RATES)
    partitions.ensure(this.begin)
    partitions.ensure(this.next.begin)
    for month in (this, this.next):
        with pytest.raises(IntegrityError, match="are not over"), transaction.atomic():
            partitions.retire(partitions.of_day(month.begin.date()))
    for months in (1, 2):
        store(row_at(this.before(months).begin, tenant(f"acme-{months}")))
        partitions.ensure()
        with pytest.raises(IntegrityError, match="are not over"), transaction.atomic():
            retire(this.before(months))


def test_a_projects_statement_is_refused_once_its_requests_are_gone() -> None:
    acme = tenant("acme")
    project = Project.objects.create(tenant_id=acme, slug="hr", name="HR")
    price_from(MARCH - timedelta(days=9), DEMO_RATES)
    store(row_at(MIDDLE, acme))
    partitions.ensure(MIDDLE)
    close(acme, 3)
    assert statements.statement(acme, 2026, 3, project).requests == 0  # the request is another project's
    retire(Month(2026, 3))
    with pytest.raises(RequestsDeleted):
        statements.statement(acme, 2026, 3, project)
