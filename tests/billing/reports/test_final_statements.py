"""A final statement outlives the requests that it sums, and says what they said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from billing.errors import NotFinal, RequestsDeleted
from billing.ledger import partitions
from billing.ledger.partitions import Month
from billing.models import UsageRecord
from billing.pricing.prices import DEMO_RATES
from billing.reports import statements
from tenants.database import rls
from tenants.ids import TenantId, first_id_at, new_id
from tenants.models import Project, Tenant
from tests.billing.conftest import sums
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

MARCH = datetime(2026, 3, 1, tzinfo=UTC)
MIDDLE = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)


def tenant(slug: str, zone: str = "UTC") -> TenantId:
    return TenantId(Tenant.objects.create(slug=slug, name=slug, billing_timezone=zone).id)


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
    store(
        row_at(MIDDLE, acme, tokens=(1000, 400, 30)),
        row_at(MIDDLE, acme, cache_result="hit", tokens=(0, 0, 0), avoided=(5, 0, 3)),
        row_at(last_hour, ahead),
        row_at(MIDDLE, TenantId(new_id()), purpose="canary"),
    )
    before, money = statements.statement(acme, 2026, 3), sums()
    as_app()
    partitions.ensure(MIDDLE)
    with pytest.raises(IntegrityError, match="on no final statement"):
        partitions.retire(Month(2026, 3))
    for tenant_id, month in ((acme, 3), (ahead, 3), (ahead, 4)):
        statements.finalise(tenant_id, 2026, month)
        statements.finalise(tenant_id, 2026, month)
    assert partitions.retire(Month(2026, 3)) == 4
    assert partitions.retire(Month(2026, 3)) is None
    assert Month(2026, 3) not in partitions.existing()
    assert not UsageRecord.objects.exists()
    with rls.as_tenant(acme):
        assert statements.statement(acme, 2026, 3) == before
    assert statements.statement(ahead, 2026, 4).requests == 1
    after = sums()
    assert (after.rollup_pico, after.ledger_pico) == (money.rollup_pico, money.ledger_pico)
    with rls.as_tenant(ahead), pytest.raises(Tenant.DoesNotExist):
        statements.statement(acme, 2026, 3)


def test_late_usage_of_a_retired_month_is_stored_charged_and_kept() -> None:
    acme = tenant("acme")
    price_from(MARCH - timedelta(days=9), DEMO_RATES)
    store(row_at(MIDDLE, acme))
    partitions.ensure(MIDDLE)
    statements.finalise(acme, 2026, 3)
    partitions.retire(Month(2026, 3))
    late = row_at(MIDDLE, acme)
    store(late)
    assert partitions.ensure(MIDDLE) == ("billing_usagerecord_2026_03",)
    assert UsageRecord.objects.get().id == late.id
    assert not statements.statement(acme, 2026, 3).equals_ledger
    with pytest.raises(NotFinal, match="the ledger has"):
        statements.finalise(acme, 2026, 3)


def test_a_month_with_requests_without_a_price_or_that_runs_has_no_final_statement() -> None:
    acme = tenant("acme")
    store(row_at(MIDDLE, acme))
    with pytest.raises(NotFinal, match="1 requests have no price"):
        statements.finalise(acme, 2026, 3)
    with pytest.raises(NotFinal, match="not over"):
        statements.finalise(acme, 2099, 1)


def test_usage_of_the_last_two_months_is_never_retired() -> None:
    this = partitions.month_of(datetime.now(UTC))
    partitions.ensure()
    for month in (this, this.next):
        with pytest.raises(IntegrityError, match="are not over"), transaction.atomic():
            partitions.retire(month)
    for months in (1, 2):
        store(row_at(this.before(months).begin, tenant(f"acme-{months}")))
        partitions.ensure()
        with pytest.raises(IntegrityError, match="are not over"), transaction.atomic():
            partitions.retire(this.before(months))


def test_a_projects_statement_is_refused_once_its_requests_are_gone() -> None:
    acme = tenant("acme")
    project = Project.objects.create(tenant_id=acme, slug="hr", name="HR")
    price_from(MARCH - timedelta(days=9), DEMO_RATES)
    store(row_at(MIDDLE, acme))
    partitions.ensure(MIDDLE)
    statements.finalise(acme, 2026, 3)
    assert statements.statement(acme, 2026, 3, project).requests == 0  # the request is another project's
    partitions.retire(Month(2026, 3))
    with pytest.raises(RequestsDeleted):
        statements.statement(acme, 2026, 3, project)
