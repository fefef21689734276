"""`hearth measure-routing`: compare two routing policies on live traffic, and read the report again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest
from click.testing import CliRunner
from django.db import connection

from catalogue import routing_policy
from catalogue.routing_policy import Comparison
from hearth.cli.main import hearth as command
from tenants.ids import TenantId, new_id
from tenants.models import AuditEntry
from tests.billing.usage_records import row_at, store
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.tenants import MODEL
from tests.hearth.cli.conftest import Hearth
from workers.models import Deployment

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def emptied(transactional_db: None) -> Iterator[None]:
    """Leave no usage behind, which Django's flush does."""
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE billing_usagerecord")


def answer(comparison: Comparison) -> None:
    """Store ten requests of each arm, with twice the tokens cached in B."""
    tenant, moment = TenantId(new_id()), datetime.fromtimestamp(comparison.began, tz=UTC)
    for arm, tokens in (("A", (600, 200, 7)), ("B", (400, 400, 7))):
        for group in range(20):
            row = row_at(moment, tenant, model_name=MODEL, tokens=tokens)
            store(msgspec.structs.replace(row, routing_split=f"{comparison.name}-{arm}-{group}"))


@pytest.mark.usefixtures("emptied")
def test_a_comparison_ends_by_itself_and_is_reported_as_often_as_wanted(hearth: Hearth) -> None:
    tenants.build()
    missing = hearth("measure-routing", MODEL, "--report")
    assert (missing.returncode, "there is no comparison of routing policies" in missing.stderr) == (1, True)
    policies = ("--policy", "session", "--against", "expected-seconds:decode=2")
    empty = hearth("measure-routing", MODEL, *policies, "--minutes", "0.001", "--share", "0.25")
    assert empty.returncode == 1
    assert "has 0 complete requests by policy A and 0 by B" in empty.stderr
    comparison = routing_policy.read(Deployment.objects.get().routing).comparison
    assert comparison is not None
    assert (str(comparison.policy), str(comparison.against)) == ("session", "expected-seconds:decode=2")
    assert comparison.share == 0.25
    assert comparison.until - comparison.began == pytest.approx(0.06)

    answer(comparison)
    shown = hearth("measure-routing", MODEL, "--report")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[0].endswith("UTC, 25% of the conversations by B")
    assert lines[1:3] == ["A  session", "B  expected-seconds:decode=2"]
    (hit_rate,) = (line for line in lines if line.startswith("cached share"))
    same, doubled, more = (f"{share} [{share}, {share}]" for share in (25.0, 50.0, 25.0))
    assert " ".join(hit_rate.split("%")[1].split()) == f"{same} {doubled} {more}"
    assert lines[-1] == (
        "Of 7 metrics these differ, each with 95 % confidence: "
        "cached share of prompts, %; prompt tokens computed per request."
    )
    found = json.loads(hearth("measure-routing", MODEL, "--stop", "--json").stdout)
    assert (found["a"]["requests"], found["b"]["groups"], found["share"]) == (20, 20, 0.25)
    assert found["difference"]["hit_rate"] == {"value": 0.25, "low": 0.25, "high": 0.25}
    assert list(AuditEntry.objects.filter(action__contains="compar").values_list("action", flat=True)) == [
        "deployment.routing_compared"
    ]


@pytest.mark.parametrize(
    "arguments",
    [(), ("--report", "--against", "session"), ("--against", "fastest"), ("--against", "expected-seconds:decode=11")],
)
def test_what_cannot_be_compared_is_refused(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(command, ["measure-routing", MODEL, *arguments]).exit_code == 2
