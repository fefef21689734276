"""Usage and statements over ``/api/v1/``: exact numbers, and none for other tenants."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from billing.models import UsageRecord
from tenants.ids import new_id
from tenants.isolation import keyspace
from tenants.models import Membership
from tests.portal import fixtures
from tests.portal.fixtures import World

#: 600 × 150,000 + 400 × 15,000 + 100 × 600,000 pico-dollars.
ANSWER_PICO = 156_000_000
#: 400 × (150,000 − 15,000).
WARM_PICO = 54_000_000
#: 1,000 × 150,000 + 100 × 600,000.
HIT_PICO = 210_000_000


@pytest.fixture
def now() -> datetime:
    """The middle of a past quarter of an hour, so that every request below is in the past."""
    return timezone.now() - timedelta(minutes=30)


@pytest.fixture
def used(world: World, now: datetime) -> World:
    """Acme: two answers, one hit, one failure. Globex: one answer."""
    fixtures.store(
        [
            fixtures.answered(world, world.acme, now, 1),
            fixtures.answered(world, world.acme, now, 2),
            fixtures.predicted(world, world.acme, now, 3),
            fixtures.failed(world, world.acme, now, 4),
            fixtures.answered(world, world.globex, now, 5),
        ]
    )
    return world


def cells(answer: Any) -> list[dict[str, str]]:
    """Return the rows of a CSV."""
    assert answer["Content-Type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))


def test_totals_are_exact_and_a_tenant_s_own(used: World, as_acme: APIClient) -> None:
    document = as_acme.get("/api/v1/usage/totals").json()
    assert document["total"] == {
        "requests": 4,
        "errors": 1,
        "refused_requests": 0,
        "prediction_hits": 1,
        "coalesced_requests": 0,
        "bypassed_requests": 0,
        "prefix_hits": 2,
        "prompt_tokens": 1200,
        "cached_prompt_tokens": 800,
        "predicted_cached_tokens": 0,
        "completion_tokens": 200,
        "cache_write_tokens": 0,
        "reasoning_tokens": 0,
        "avoided_tokens": 1100,
        "avoided_engine_ms": 780,
        "amount_pico": 2 * ANSWER_PICO,
        "saved_prediction_pico": HIT_PICO,
        "saved_prefix_pico": 2 * WARM_PICO,
    }
    assert document["by_tenant"] == []
    assert [each["model"] for each in document["by_model"]] == [fixtures.MODEL]


def test_an_operator_sees_all_tenants_or_one(used: World, as_operator: APIClient) -> None:
    everything = as_operator.get("/api/v1/usage/totals").json()
    assert everything["total"]["amount_pico"] == 3 * ANSWER_PICO
    assert {each["tenant"]: each["sums"]["requests"] for each in everything["by_tenant"]} == {"acme": 4, "globex": 1}
    one = as_operator.get("/api/v1/usage/totals?tenant=globex").json()
    assert one["total"]["amount_pico"] == ANSWER_PICO


def test_savings_are_told_apart_and_by_whom(used: World, as_acme: APIClient, as_operator: APIClient) -> None:
    document = as_acme.get("/api/v1/usage/savings?group_by=key").json()
    prediction = {
        "hits": 1,
        "coalesced": 0,
        "misses": 3,
        "bypassed": 0,
        "tokens": 1100,
        "engine_ms": 780,
        "pico": HIT_PICO,
    }
    prefix = {"requests": 2, "tokens": 800, "pico": 2 * WARM_PICO}
    assert document["total"] == {"requests": 4, "prediction": prediction, "prefix": prefix}
    key = used.acme.key
    assert document["groups"] == [{"id": str(key.id), "name": key.name, "savings": document["total"]}]
    assert as_acme.get("/api/v1/usage/savings?group_by=tenant").status_code == 400
    assert as_acme.get("/api/v1/usage/savings?tenant=globex").status_code == 404
    tenants = as_operator.get("/api/v1/usage/savings?group_by=tenant").json()["groups"]
    assert [(each["name"], each["savings"]["requests"]) for each in tenants] == [("acme", 4), ("globex", 1)]
    total, group = cells(as_acme.get("/api/v1/usage/savings?group_by=project&format=csv"))
    assert (total["saved_by_prediction"], total["engine_seconds_avoided"]) == ("0.000210000000", "0.780")
    assert (group["by"], group["id"], group["tokens_avoided"]) == ("project", str(used.acme.project.id), "1100")


def test_requests_are_listed_newest_first_and_filtered(
    used: World, as_acme: APIClient, as_globex: APIClient, now: datetime
) -> None:
    rows = as_acme.get("/api/v1/usage").json()["data"]
    assert [row["cache_result"] for row in rows] == ["miss", "hit", "miss", "miss"]
    assert [row["amount_pico"] for row in rows] == [0, 0, ANSWER_PICO, ANSWER_PICO]
    assert {row["tenant_id"] for row in rows} == {str(used.acme.tenant.id)}
    hits = as_acme.get("/api/v1/usage?cache=hit").json()["data"]
    assert [row["saved_prediction_pico"] for row in hits] == [HIT_PICO]
    cut = msgspec.structs.replace(fixtures.answered(used, used.acme, now, 77), finish_reason="length", tpot_ms=11.25)
    fixtures.store([cut])
    (row,) = as_acme.get("/api/v1/usage?finish=length").json()["data"]
    assert (row["id"], row["finish_reason"], row["tpot_ms"]) == (str(cut.id), "length", 11.25)
    assert row["traced"] is False
    assert as_globex.get("/api/v1/usage?finish=length").json()["data"] == []
    errors = as_acme.get("/api/v1/usage?errors=true").json()["data"]
    assert [row["state"] for row in errors] == ["engine_error"]
    assert as_acme.get("/api/v1/usage?model=other").json()["data"] == []
    assert as_acme.get(f"/api/v1/usage?key={used.globex.key.id}").json()["data"] == []


def test_a_replica_has_its_own_name_for_each_tenant(
    used: World, as_acme: APIClient, as_globex: APIClient, as_operator: APIClient
) -> None:
    replica = new_id()
    UsageRecord.objects.update(replica_id=replica)
    names = []
    for client, tenant in ((as_acme, used.acme.tenant), (as_globex, used.globex.tenant)):
        row = client.get("/api/v1/usage").json()["data"][0]
        names.append(row["replica_id"])
        assert row["replica_id"] == keyspace.replica_token(tenant.id, replica).decode()
        assert client.get(f"/api/v1/usage/{row['id']}").json()["replica_id"] == row["replica_id"]
    assert names[0] != names[1]
    shown = as_operator.get("/api/v1/usage").json()["data"]
    assert {row["replica_id"] for row in shown} == {str(replica)}
    UsageRecord.objects.update(replica_id=None)
    assert as_acme.get("/api/v1/usage").json()["data"][0]["replica_id"] is None


def test_pages_of_requests_follow_each_other(used: World, as_acme: APIClient) -> None:
    first = as_acme.get("/api/v1/usage?limit=3").json()
    assert first["has_more"] is True
    second = as_acme.get(f"/api/v1/usage?limit=3&after={first['next_after']}").json()
    assert second["has_more"] is False
    ids = [row["id"] for row in first["data"] + second["data"]]
    assert len(ids) == 4
    assert ids == sorted(ids, reverse=True)


def test_a_series_covers_the_period_and_sums_to_the_total(used: World, as_acme: APIClient) -> None:
    document = as_acme.get("/api/v1/usage/series?period=6h&step=900").json()
    assert len(document["points"]) == 24
    assert sum(point["sums"]["requests"] for point in document["points"]) == 4
    assert as_acme.get("/api/v1/usage/series?step=60").status_code == 400
    assert as_acme.get("/api/v1/usage/series?period=90d&step=0").status_code == 400


def test_refusals_are_listed_with_their_error_apart_from_the_platforms(
    used: World, as_acme: APIClient, as_globex: APIClient, now: datetime
) -> None:
    refused = fixtures.refused(used, used.acme, now, 9, refusals=3)
    fixtures.store([refused])
    (row,) = as_acme.get("/api/v1/usage?errors=client").json()["data"]
    assert (row["error_code"], row["error_message"], row["refusals"]) == ("rate_limit_exceeded", "Too many.", 3)
    assert (row["amount_pico"], row["http_status"], row["client_request_id"]) == (0, 429, "theirs")
    assert [each["state"] for each in as_acme.get("/api/v1/usage?errors=platform").json()["data"]] == ["engine_error"]
    total = as_acme.get("/api/v1/usage/totals").json()["total"]
    assert (total["requests"], total["errors"], total["refused_requests"]) == (4, 1, 3)
    for wanted in (str(refused.id), "theirs"):
        assert as_acme.get(f"/api/v1/usage?request_id={wanted}").json()["data"] == [row]
        assert as_globex.get(f"/api/v1/usage?request_id={wanted}").json()["data"] == []
    old = "from=2025-01-01T00:00Z&to=2025-01-02T00:00Z"
    assert as_acme.get(f"/api/v1/usage?request_id={refused.id}&{old}").json()["data"] == [row]


def test_requests_as_csv_have_exact_money(used: World, as_acme: APIClient) -> None:
    rows = cells(as_acme.get("/api/v1/usage?format=csv"))
    assert [row["billed"] for row in rows] == ["0.000000000000", "0.000000000000", "0.000156000000", "0.000156000000"]
    assert rows[1]["saved_by_prediction"] == "0.000210000000"


def test_a_statement_equals_the_ledger_to_the_pico_dollar(used: World, as_acme: APIClient, now: datetime) -> None:
    document = as_acme.get(f"/api/v1/tenants/acme/statements/{now:%Y-%m}").json()
    assert document["amount_pico"] == document["ledger_pico"] == 2 * ANSWER_PICO
    assert document["equals_ledger"] is True
    assert document["savings"]["prediction_pico"] == HIT_PICO
    assert document["savings"]["prefix_pico"] == 2 * WARM_PICO
    assert (document["requests"], document["free_requests"]) == (4, 1)
    rows = cells(as_acme.get(f"/api/v1/tenants/acme/statements/{now:%Y-%m}?format=csv"))
    assert [row["class"] for row in rows[-3:]] == ["total", "rounding", "due"]
    assert rows[-3]["amount_pico"] == str(2 * ANSWER_PICO)


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("usage?period=2y", "period"),
        ("usage?from=yesterday", "from"),
        ("usage?from=2025-06-02T00:00Z&to=2025-06-01T00:00Z", "from"),
        ("usage?from=0001-01-01T00:00Z", "from"),
        ("usage?to=9999-12-31T23:59:59Z", "to"),
        ("usage?from=2025-06-01T00:00:00-99:00", "from"),
        ("usage?cache=sometimes", "cache"),
        ("usage?state=fine", "state"),
        ("usage?errors=1", "errors"),
        ("usage?project=x", "project"),
        ("usage?format=xml", "format"),
        ("tenants/acme/statements/june", "month"),
        ("tenants/acme/statements/2025-13", "month"),
        ("tenants/acme/statements/0001-01", "month"),
        ("tenants/acme/statements/9999-12", "month"),
    ],
)
def test_a_bad_parameter_is_refused_by_name(used: World, as_acme: APIClient, path: str, param: str) -> None:
    answer = as_acme.get(f"/api/v1/{path}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_stranger_finds_none_of_it(used: World, as_acme: APIClient, as_globex: APIClient, now: datetime) -> None:
    guessed = fixtures.request_id(now, 1)
    assert as_acme.get(f"/api/v1/usage/{guessed}").status_code == 200
    for path in (
        f"usage/{guessed}",
        f"usage/{guessed}?tenant=acme",
        f"usage?tenant={used.acme.tenant.id}",
        "usage?tenant=acme&format=csv",
        "usage/totals?tenant=acme",
        "usage/series?tenant=acme",
        f"tenants/acme/statements/{now:%Y-%m}",
        f"tenants/{used.acme.tenant.id}/statements/{now:%Y-%m}?format=csv",
    ):
        assert as_globex.get(f"/api/v1/{path}").status_code == 404, path
    own = as_globex.get("/api/v1/usage").json()["data"]
    assert [row["id"] for row in own] == [str(fixtures.request_id(now, 5))]
    assert as_globex.get("/api/v1/usage/totals").json()["total"]["amount_pico"] == ANSWER_PICO


def test_a_member_of_two_tenants_names_one(used: World) -> None:
    Membership.objects.create(user=used.acme.owner, tenant=used.globex.tenant)
    browser = Client()
    browser.force_login(used.acme.owner)
    unnamed = browser.get("/api/v1/usage")
    assert unnamed.status_code == 400
    assert unnamed.json()["error"]["param"] == "tenant"
    assert len(browser.get("/api/v1/usage?tenant=globex").json()["data"]) == 1


def test_lists_and_sums_cost_the_same_queries_whatever_their_length(
    used: World, as_acme: APIClient, now: datetime, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    fixtures.store(fixtures.answered(used, used.acme, now, number) for number in range(100, 300))
    for path in ("usage?limit=200", "usage/totals", "usage/series", f"tenants/acme/statements/{now:%Y-%m}"):
        with django_assert_max_num_queries(18):
            assert as_acme.get(f"/api/v1/{path}").status_code == 200


def test_a_month_of_another_year_is_empty_not_missing(used: World, as_acme: APIClient) -> None:
    document = as_acme.get(f"/api/v1/tenants/acme/statements/{datetime(2025, 1, 1, tzinfo=UTC):%Y-%m}").json()
    assert (document["lines"], document["amount_pico"], document["equals_ledger"]) == ([], 0, True)
