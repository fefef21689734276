"""The journal: exact by cost centre and code, balanced, equal to what closed months charge."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, date, datetime

import pytest
from django.db import Error, connection, transaction
from msgspec.structs import replace as replace_field

from billing.chargeback import closed_months, focus, gl_codes, journal
from billing.errors import GlCodeMissing
from billing.models import GlCode, MonthProjectLine
from billing.months import closing, reopening
from billing.pricing.prices import DEMO_RATES
from billing.reports import statements
from billing.reports.statements import Month
from tenants import cost_centres
from tenants.audit import Actor
from tenants.errors import BadName, NotFound
from tenants.ids import TenantId
from tenants.models import AuditEntry, Project, Tenant
from tests.billing.agreed_plans import assign_from, plan_from
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

ADA = Actor(kind="user", name="ada")
MARCH = date(2026, 3, 1)
NOON = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
RATES = replace(DEMO_RATES, prompt_pico=150_000, cached_prompt_pico=15_000, completion_pico=600_000)


@pytest.fixture
def acme() -> Tenant:
    """A tenant of cost centre 4000 with two projects, of which ``hr`` has one of its own."""
    Tenant.objects.update(created_at="2024-01-01T00:00:00Z")
    acme = Tenant.objects.create(slug="acme", name="Acme", cost_centre="4000")
    Tenant.objects.filter(id=acme.id).update(created_at="2024-01-01T00:00:00Z")
    price_from(datetime(2026, 1, 1, tzinfo=UTC), RATES)
    return acme


def project(tenant: Tenant, slug: str, cost_centre: str = "") -> Project:
    return Project.objects.create(tenant=tenant, slug=slug, name=slug, cost_centre=cost_centre)


def use(tenant: Tenant, project: Project, tokens: tuple[int, int, int]) -> None:
    store(replace_field(row_at(NOON, TenantId(tenant.id), tokens=tokens), project_id=project.id))


def close(tenant: Tenant) -> None:
    closing.close(ADA, Month(tenant=tenant, year=2026, month=3))


def set_codes(**codes: str) -> None:
    for line_class, code in codes.items():
        gl_codes.set_code(ADA, code, line_class="" if line_class == "any" else line_class)


def bookings(tenant: Tenant | None = None) -> list[tuple[str, str, int, str]]:
    found = journal.read(2026, 3, tenant)
    return [(each.cost_centre, each.gl_code, each.cents, each.text) for each in found.bookings]


def test_cost_centres_are_debited_what_the_platform_is_credited(acme: Tenant) -> None:
    hr, default = project(acme, "hr", "4711"), project(acme, "default")
    use(acme, default, (10_000_000, 0, 1_000_000))
    use(acme, hr, (2_000_000, 1_000_000, 0))
    close(acme)
    set_codes(any="6100", completion="6200", credit="9000")
    assert bookings() == [
        ("4000", "6100", 150, "Inference 2026-03"),
        ("4000", "6200", 60, "Inference 2026-03"),
        ("4711", "6100", 32, "Inference 2026-03"),
        # Exactly 0.315 is 0.32 to the cent, half to even; the statement rounds 0.30 and 0.015 (0.02), and 1.50.
        ("", "9000", -242, "Platform 2026-03"),
    ]
    statement = statements.statement(TenantId(acme.id), 2026, 3)
    assert statement.amount_cents == 242


def changed(acme: Tenant, hr: Project) -> None:
    """Change the cost centre of both."""
    cost_centres.set_of_tenant(ADA, acme, "5000")
    cost_centres.set_of_project(ADA, hr, "5711")


def test_a_closed_month_keeps_its_cost_centres_until_it_is_closed_again(acme: Tenant) -> None:
    assign_from(MARCH, acme, plan_from(MARCH, {"minimum": "5.00"}))
    hr, default = project(acme, "hr", "4711"), project(acme, "default")
    use(acme, default, (10_000_000, 0, 0))
    use(acme, hr, (2_000_000, 0, 0))
    close(acme)
    set_codes(any="6100", credit="9000")
    before = bookings()
    assert {centre for centre, *_ in before} == {"4000", "4711", ""}
    changed(acme, hr)
    assert bookings() == before
    assert {json.loads(row.tags)["cost_centre"] for row in focus.read(2026, 3)} == {"4000", "4711"}
    month = Month(tenant=acme, year=2026, month=3)
    reopening.request(ADA, month, "wrong cost centres")
    reopening.confirm(Actor(kind="user", name="bob"), month)
    close(acme)
    assert {centre for centre, *_ in bookings()} == {"5000", "5711", ""}


def test_a_month_that_an_earlier_release_closed_has_todays_cost_centres(acme: Tenant) -> None:
    assign_from(MARCH, acme, plan_from(MARCH, {"minimum": "5.00"}))
    hr = project(acme, "hr", "4711")
    use(acme, hr, (2_000_000, 0, 0))
    close(acme)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in ("billing_billingmonth", "billing_monthprojectline"):
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            cursor.execute(f"UPDATE {table} SET cost_centre = NULL")
    set_codes(any="6100", credit="9000")
    changed(acme, hr)
    assert {centre for centre, *_ in bookings()} == {"5000", "5711", ""}


def test_rounding_and_terms_are_bookings_of_their_own_and_all_balance(acme: Tenant) -> None:
    assign_from(MARCH, acme, plan_from(MARCH, {"discounts": [{"percent": 10}], "minimum": "5.00"}))
    for number in range(3):
        use(acme, project(acme, f"p{number}", f"c{number}"), (30_000, 0, 0))
    close(acme)
    set_codes(any="6100", rounding="6900", terms="6800", credit="9000")
    found = bookings()
    assert [each for each in found if each[1] == "6900"] == [("4000", "6900", 1, "Rounding 2026-03")]
    assert [cents for _, code, cents, _ in found if code == "6100"] == []
    assert [each[1:] for each in found if each[1] == "6800"] == [("6800", 499, "Terms of the plan 2026-03")]
    assert sum(cents for _, _, cents, _ in found) == 0
    assert found[-1][2] == -statements.statement(TenantId(acme.id), 2026, 3).amount_cents == -500


def test_the_csv_has_each_amount_on_one_side(acme: Tenant) -> None:
    use(acme, project(acme, "default"), (10_000_000, 0, 0))
    close(acme)
    set_codes(any="6100", credit="9000")
    text = "\n".join(",".join(row) for row in journal.csv_rows(journal.read(2026, 3)))
    assert list(csv.DictReader(io.StringIO(text))) == [
        {
            "date": "2026-03-31", "tenant": "acme", "cost_centre": "4000", "gl_code": "6100", "debit": "1.50",
            "credit": "", "currency": "USD", "text": "Inference 2026-03",
        },
        {
            "date": "2026-03-31", "tenant": "acme", "cost_centre": "", "gl_code": "9000", "debit": "",
            "credit": "1.50", "currency": "USD", "text": "Platform 2026-03",
        },
    ]  # fmt: skip


def test_open_months_are_named_and_not_booked(acme: Tenant) -> None:
    use(acme, project(acme, "default"), (10_000_000, 0, 0))
    found = journal.read(2026, 3)
    assert (found.bookings, found.open_tenants) == ((), ("acme",))


def test_a_line_without_a_code_stops_the_journal(acme: Tenant) -> None:
    use(acme, project(acme, "default"), (10_000_000, 0, 1_000))
    close(acme)
    set_codes(completion="6200")
    with pytest.raises(GlCodeMissing, match=r"no GL code is set for credit, prompt of demo$"):
        journal.read(2026, 3)


def test_a_month_that_an_earlier_release_closed_is_the_tenants(acme: Tenant) -> None:
    use(acme, project(acme, "hr", "4711"), (10_000_000, 0, 0))
    close(acme)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("TRUNCATE billing_monthprojectline")
    set_codes(any="6100", credit="9000")
    assert [each[:3] for each in bookings()] == [("4000", "6100", 150), ("", "9000", -150)]


def test_lines_by_project_add_up_to_the_statement_and_never_change(acme: Tenant) -> None:
    for slug, tokens in (("a", (7, 5, 3)), ("b", (11, 0, 2)), ("c", (0, 9, 0))):
        use(acme, project(acme, slug), tokens)
    close(acme)
    (month,) = closed_months.read(2026, 3).closed
    sums: dict[str, int] = {}
    for part in month.parts:
        sums[part.line.token_class] = sums.get(part.line.token_class, 0) + part.line.quantity
    assert sums == {line.token_class: line.quantity for line in month.statement.lines} == {
        "prompt": 18, "cached_prompt": 14, "completion": 5,
    }  # fmt: skip
    with pytest.raises(Error), transaction.atomic():
        MonthProjectLine.objects.update(quantity=1)


def test_the_most_exact_code_counts(acme: Tenant) -> None:
    gl_codes.set_code(ADA, "any")
    gl_codes.set_code(ADA, "class", line_class="prompt")
    gl_codes.set_code(ADA, "model", model_name="demo")
    gl_codes.set_code(ADA, "both", line_class="prompt", model_name="demo")
    codes = gl_codes.read()
    lines = (("prompt", "demo"), ("completion", "demo"), ("prompt", "x"), ("completion", "x"))
    assert [codes.of(*line) for line in lines] == ["both", "model", "class", "any"]
    assert (codes.of("cache_write", "demo"), codes.of("reasoning", "demo")) == ("both", "model")
    assert (codes.of("terms"), codes.of("rounding"), codes.of("credit")) == ("any", "any", None)


def test_codes_are_set_once_changed_and_removed_on_record(acme: Tenant) -> None:
    gl_codes.set_code(ADA, " 6100 ", line_class="prompt")
    gl_codes.set_code(ADA, "6100", line_class="prompt")
    gl_codes.set_code(ADA, "6101", line_class="prompt")
    assert [(row.line_class, row.model_name, row.code) for row in gl_codes.rows()] == [("prompt", "", "6101")]
    gl_codes.remove(ADA, line_class="prompt")
    entries = AuditEntry.objects.filter(object_kind="gl_code").order_by("id")
    assert [(entry.action, (entry.after or {})["code"]) for entry in entries] == [
        ("gl_code.set", "6100"),
        ("gl_code.set", "6101"),
        ("gl_code.removed", None),
    ]
    with pytest.raises(NotFound):
        gl_codes.remove(ADA, line_class="prompt")
    assert not GlCode.objects.exists()


@pytest.mark.parametrize(
    ("code", "line_class", "model"),
    [("", "", ""), ("x" * 65, "", ""), ("6\0", "", ""), ("6", "tokens", ""), ("6", "\0", ""), ("6", "", "\0"),
     ("6", "credit", "demo"), ("6", "", "m" * 201)],
)  # fmt: skip
def test_a_wrong_code_is_named(acme: Tenant, code: str, line_class: str, model: str) -> None:
    with pytest.raises(BadName):
        gl_codes.set_code(ADA, code, line_class=line_class, model_name=model)
