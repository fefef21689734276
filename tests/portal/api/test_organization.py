"""OpenAI's admin API below ``/v1/organization``: the official SDK, exact figures, strangers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from django.db import connection
from django.utils import timezone
from rest_framework.test import APIClient

from billing.ledger.usage_rows import UsageRow
from billing.models import PriceVersion
from billing.pricing import prices
from billing.reports import buckets, statements
from catalogue import registry as catalogue
from tenants import registry
from tenants.ids import TenantId
from tenants.keys import keys, tokens
from tenants.models import PolicyEpoch
from tests.portal import fixtures
from tests.portal.conftest import bearer, error_of
from tests.portal.fixtures import World
from tests.portal.portal_process import portal_process
from workers.engines.driver import EMBEDDING_ARGS

#: 600 × 150,000 + 400 × 15,000 + 100 × 600,000 pico-dollars.
ANSWER_PICO = 156_000_000
#: 50 × 20,000 pico-dollars.
EMBEDDING_PICO = 1_000_000
VECTORS = "tiny-vectors"
#: A past month, in UTC.
FIRST = datetime(2025, 3, 1, tzinfo=UTC)
DAY = 86_400
SCOPES = ("inference", "management:read", "management:tenant")


def embedded(world: World, moment: datetime, number: int) -> UsageRow:
    """Return one request of acme for embeddings of 50 tokens."""
    row = fixtures.answered(world, world.acme, moment, number)
    return msgspec.structs.replace(
        row,
        model_name=VECTORS,
        endpoint="/v1/embeddings",
        stream=False,
        prompt_tokens=50,
        cached_prompt_tokens=0,
        completion_tokens=0,
    )


def use(world: World) -> None:
    """Acme: two answers and a hit on the first day, an answer on the third, two embeddings. Globex: an answer."""
    catalogue.register(
        fixtures.OPERATOR,
        registry.create_tenant(fixtures.OPERATOR, slug="owner", name="Owner"),
        catalogue.Description(
            name=VECTORS,
            source="/models/tiny-chat",
            engine="simulated",
            engine_args=EMBEDDING_ARGS,
            context_length_tokens=512,
            public=True,
        ),
    )
    PriceVersion.objects.create(
        book=prices.ensure_price_book(),
        model_name=VECTORS,
        prompt_pico=20_000,
        cached_prompt_pico=0,
        completion_pico=0,
        effective_from=datetime(2024, 1, 1, tzinfo=UTC),
    )
    noon, third = FIRST + timedelta(hours=12), FIRST + timedelta(days=2, hours=1)
    fixtures.store(
        [
            fixtures.answered(world, world.acme, noon, 1),
            fixtures.answered(world, world.acme, noon + timedelta(minutes=1), 2),
            fixtures.predicted(world, world.acme, noon, 3),
            fixtures.answered(world, world.acme, third, 4),
            fixtures.answered(world, world.globex, noon, 5),
            embedded(world, noon, 6),
            embedded(world, third, 7),
        ]
    )


def admin(world: World) -> APIClient:
    """A client with an admin key of acme."""
    return bearer(keys.issue(fixtures.OPERATOR, world.acme.project, name="admin", scopes=SCOPES).secret)


@pytest.fixture
def used(world: World) -> World:
    use(world)
    return world


@pytest.fixture
def acme(used: World) -> APIClient:
    return admin(used)


def url(what: str, **query: Any) -> str:
    """Return a path with its query; ``start_time`` is the month's."""
    asked = {"start_time": int(FIRST.timestamp()), "end_time": int(FIRST.timestamp()) + 31 * DAY} | query
    pairs = [(name, each) for name, value in asked.items() for each in (value if isinstance(value, list) else [value])]
    return f"/v1/organization/{what}?{httpx2.QueryParams(pairs)}"


def results(answer: Any) -> list[dict[str, Any]]:
    """Return the results of all buckets of a page, without the fields that are null."""
    assert answer.status_code == 200, answer.content
    found = [each for bucket in answer.json()["data"] for each in bucket["results"]]
    return [{name: value for name, value in each.items() if value is not None} for each in found]


@pytest.fixture
def portal(transactional_db: None, app_database_url: str, tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """A portal process that has seen the usage: its base URL, an admin key of acme and an operator's token."""
    PolicyEpoch.objects.get_or_create(id=1)
    world = fixtures.build()
    use(world)
    secret = keys.issue(fixtures.OPERATOR, world.acme.project, name="admin", scopes=SCOPES).secret
    token = tokens.issue(fixtures.OPERATOR, world.operator, name="test").secret
    try:
        with portal_process(app_database_url, tmp_path / "portal.log") as base:
            yield f"{base}/v1", secret, token
    finally:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE billing_usagerecord")


@pytest.mark.django_db(transaction=True)
def test_the_official_sdk_reads_usage_and_costs_with_an_admin_key(portal: tuple[str, str, str]) -> None:
    base, secret, token = portal
    start = int(FIRST.timestamp())
    with openai.OpenAI(base_url=base, admin_api_key=secret, api_key="unused", max_retries=0) as client:
        usage = client.admin.organization.usage
        split = usage.completions(start_time=start, end_time=start + 3 * DAY, group_by=["model", "project_id"])
        (first, _, third) = split.data
        (row,) = first.results
        assert row.object == "organization.usage.completions.result"
        assert (row.input_tokens, row.input_cached_tokens, row.output_tokens) == (2000, 800, 200)
        assert (row.num_model_requests, row.model, row.api_key_id) == (3, fixtures.MODEL, None)
        assert (first.start_time, first.end_time, third.end_time) == (start, start + DAY, start + 3 * DAY)
        assert (split.has_more, split.next_page) == (False, None)
        vectors = usage.embeddings(start_time=start, end_time=start + DAY, bucket_width="1h")
        (found,) = [each for bucket in vectors.data for each in bucket.results]
        assert found.object == "organization.usage.embeddings.result"
        assert (found.input_tokens, found.num_model_requests) == (50, 1)
        assert [each.results for each in usage.images(start_time=start, limit=2).data] == [[], []]

        page = usage.costs(start_time=start, end_time=start + 4 * DAY, group_by=["line_item"], limit=2)
        pages = [page]
        while page.next_page:
            page = usage.costs(
                start_time=start, end_time=start + 4 * DAY, group_by=["line_item"], limit=2, page=page.next_page
            )
            pages.append(page)
        assert [len(each.data) for each in pages] == [2, 2]
        paid: dict[str | None, float] = {}
        for cost in [each for page in pages for bucket in page.data for each in bucket.results]:
            assert cost.object == "organization.costs.result"
            assert cost.amount is not None
            paid[cost.line_item] = paid.get(cost.line_item, 0.0) + (cost.amount.value or 0.0)
        assert paid == {
            fixtures.MODEL: pytest.approx(3 * ANSWER_PICO / 1e12, abs=1e-15),
            VECTORS: pytest.approx(2 * EMBEDDING_PICO / 1e12, abs=1e-15),
        }
    with openai.OpenAI(
        base_url=base, admin_api_key=token, api_key="unused", organization="globex", max_retries=0
    ) as operator:
        costs = operator.admin.organization.usage.costs(start_time=start, end_time=start + DAY)
        (one,) = costs.data[0].results
        assert one.object == "organization.costs.result"
        assert one.amount is not None
        assert (one.amount.value, one.amount.currency) == (ANSWER_PICO / 1e12, "usd")
    with (
        openai.OpenAI(base_url=base, admin_api_key="sk-not-ours", api_key="unused", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.admin.organization.usage.costs(start_time=start)


def test_costs_are_what_the_statement_has(used: World, acme: APIClient) -> None:
    statement = statements.statement(TenantId(used.acme.tenant.id), 2025, 3)
    found = results(acme.get(url("costs", limit=31)))
    pico = [round(each["amount"]["value"] * 10**12) for each in found]
    assert sum(pico) == statement.usage_pico == statement.ledger_pico == 3 * ANSWER_PICO + 2 * EMBEDDING_PICO
    by_key = results(acme.get(url("costs", limit=31, group_by=["api_key_id", "project_id"])))
    assert {(each["api_key_id"], each["project_id"]) for each in by_key} == {
        (str(used.acme.key.id), str(used.acme.project.id))
    }
    assert [round(each["amount"]["value"] * 10**12) for each in by_key] == pico


def test_a_month_of_another_time_zone_is_cut_where_it_begins_and_ends(used: World, acme: APIClient) -> None:
    begins = int((FIRST + timedelta(hours=12)).timestamp()) + 900
    document = acme.get(url("usage/completions", start_time=begins, end_time=begins + DAY)).json()
    spans = [(each["start_time"], each["end_time"]) for each in document["data"]]
    midnight = int(FIRST.timestamp()) + DAY
    assert spans == [(begins, midnight), (midnight, begins + DAY)]
    assert [each["results"] for each in document["data"]] == [[], []]


def test_minutes_are_read_from_requests_and_count_alike(
    used: World, acme: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    noon = int((FIRST + timedelta(hours=12)).timestamp())
    fixtures.store(
        [
            fixtures.failed(used, used.acme, FIRST + timedelta(hours=12), 8),
            fixtures.refused(used, used.acme, FIRST + timedelta(hours=12), 9, refusals=5),
        ]
    )
    given: dict[str, Any] = {"start_time": noon, "end_time": noon + 900}
    document = acme.get(url("usage/completions", bucket_width="1m", **given)).json()
    assert [sum(each["num_model_requests"] for each in bucket["results"]) for bucket in document["data"]] == [
        3, 1, *[0] * 13,
    ]  # fmt: skip
    (hour,) = results(acme.get(url("usage/completions", bucket_width="1h", **given)))
    assert hour["num_model_requests"] == 4
    fine = results(acme.get(url("usage/completions", bucket_width="1m", **given)))
    for name in ("input_tokens", "input_cached_tokens", "output_tokens", "num_model_requests"):
        assert sum(each[name] for each in fine) == hour[name]
    monkeypatch.setattr(buckets, "MOST_REQUESTS", 3)
    answer = acme.get(url("usage/completions", bucket_width="1m", **given))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")
    assert acme.get(url("usage/completions", bucket_width="1h", **given)).status_code == 200


def test_tokens_that_were_written_to_a_cache_are_told_apart(used: World, acme: APIClient) -> None:
    noon = FIRST + timedelta(days=9, hours=12)
    row = fixtures.answered(used, used.acme, noon, 10)
    fixtures.store([msgspec.structs.replace(row, cache_write_tokens=512)])
    start = int(noon.timestamp())
    for width in ("1m", "1h"):
        path = url("usage/completions", start_time=start, end_time=start + 3600, bucket_width=width)
        (found,) = results(acme.get(path))
        assert (found["input_tokens"], found["input_cached_tokens"]) == (1000, 400)
        assert (found["input_uncached_tokens"], found["input_cache_write_tokens"]) == (88, 512)


def test_what_is_not_recorded_is_null_and_batches_are_none(used: World, acme: APIClient) -> None:
    everything = ["project_id", "api_key_id", "model", "user_id", "batch", "service_tier", "api_source"]
    first = results(acme.get(url("usage/completions", **{"group_by[]": everything})))[0]
    assert (first["batch"], first["api_source"]) == (False, "unlabeled")
    assert first.keys().isdisjoint({"user_id", "service_tier"})
    assert results(acme.get(url("usage/completions", batch="true"))) == []
    assert len(results(acme.get(url("usage/completions", batch="false")))) == 2
    assert results(acme.get(url("usage/completions", models=[VECTORS]))) == []
    assert len(results(acme.get(url("usage/embeddings", models=[VECTORS, "other"])))) == 2
    assert results(acme.get(url("costs", api_key_ids=[str(used.globex.key.id)]))) == []


@pytest.mark.parametrize(
    ("what", "query", "param"),
    [
        ("usage/completions", {"start_time": ""}, "start_time"),
        ("usage/completions", {"start_time": "-5"}, "start_time"),
        ("usage/completions", {"start_time": "9" * 5000}, "start_time"),
        ("usage/completions", {"start_time": "1700000000000"}, "start_time"),
        ("usage/completions", {"end_time": int(FIRST.timestamp())}, "end_time"),
        ("usage/completions", {"bucket_width": "1w"}, "bucket_width"),
        ("usage/completions", {"limit": 32}, "limit"),
        ("usage/completions", {"bucket_width": "1m", "limit": 1441}, "limit"),
        ("usage/completions", {"limit": "٣"}, "limit"),
        ("usage/completions", {"group_by": ["model", "line_item"]}, "group_by"),
        ("usage/completions", {"page": "page_MQ"}, "page"),
        ("usage/completions", {"page": "page_\0é"}, "page"),
        ("usage/completions", {"page": "page_MTc0MDgzMDQwMQ"}, "page"),
        ("usage/completions", {"project_ids": ["default"]}, "project_ids"),
        ("usage/completions", {"project_ids[]": [str(fixtures.request_id(FIRST, 1))] * 101}, "project_ids"),
        ("usage/completions", {"models": ["\0"]}, "models"),
        ("usage/completions", {"user_ids[]": ["u"]}, "user_ids"),
        ("usage/completions", {"batch": "maybe"}, "batch"),
        ("usage/completions", {"nonsense": 1}, "nonsense"),
        ("costs", {"bucket_width": "1h"}, "bucket_width"),
        ("costs", {"limit": 181}, "limit"),
        ("costs", {"models": ["m"]}, "models"),
    ],
)
def test_a_wrong_parameter_is_named(acme: APIClient, what: str, query: dict[str, Any], param: str) -> None:
    answer = acme.get(url(what, **query))
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)


def test_a_bucket_of_too_many_groups_is_refused_and_a_page_ends_before_it(
    acme: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "MOST_GROUPS", 2)
    document = acme.get(url("costs", group_by=["line_item"])).json()
    assert [len(each["results"]) for each in document["data"]] == [2, 0]
    rest = acme.get(url("costs", group_by=["line_item"], page=document["next_page"]))
    assert len(results(rest)) == 2
    monkeypatch.setattr(buckets, "MOST_GROUPS", 1)
    refused = error_of(acme.get(url("costs", group_by=["line_item"])))
    assert refused["param"] == "group_by"


def test_a_stranger_sees_only_its_own(used: World, acme: APIClient, as_globex: APIClient) -> None:
    everything = [*results(as_globex.get(url("usage/completions"))), *results(as_globex.get(url("usage/embeddings")))]
    assert [each["num_model_requests"] for each in everything] == [1]
    assert as_globex.get(url("costs"), HTTP_OPENAI_ORGANIZATION="acme").status_code == 404
    assert as_globex.get(url("costs"), HTTP_OPENAI_ORGANIZATION="\0").status_code == 404
    assert results(acme.get(url("costs", project_ids=[str(used.globex.project.id)]))) == []
    assert results(acme.get(url("costs"), HTTP_OPENAI_ORGANIZATION="acme")) == results(acme.get(url("costs")))
    assert APIClient().get(url("costs")).status_code == 401


def test_a_key_that_is_not_tenant_wide_sees_its_project(used: World, as_operator: APIClient) -> None:
    hr = registry.create_project(fixtures.OPERATOR, used.acme.tenant, slug="hr", name="HR")
    own = bearer(keys.issue(fixtures.OPERATOR, hr, name="hr", scopes=["management:read"]).secret)
    assert results(own.get(url("costs"))) == []
    assert own.get(url("costs", project_ids=[str(used.acme.project.id)])).status_code == 404
    without = bearer(keys.issue(fixtures.OPERATOR, hr, name="hr", scopes=["inference"]).secret)
    assert without.get(url("costs")).status_code == 403
    unnamed = as_operator.get(url("costs"))
    assert (unnamed.status_code, error_of(unnamed)["param"]) == (400, "OpenAI-Organization")
    assert len(results(as_operator.get(url("costs"), HTTP_OPENAI_ORGANIZATION="acme"))) == 2
    assert error_of(as_operator.get("/v1/organization/projects"))["code"] == "unknown_path"
    assert error_of(as_operator.get(url("usage/nothing")))["code"] == "unknown_path"


def test_days_outlive_the_requests_they_sum(used: World, acme: APIClient) -> None:
    before = results(acme.get(url("costs", group_by=["line_item"])))
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE billing_usagerecord")
    assert results(acme.get(url("costs", group_by=["line_item"]))) == before
    now = int(timezone.now().timestamp())
    (present,) = acme.get(f"/v1/organization/costs?start_time={now}&end_time={now + 999 * DAY}").json()["data"]
    assert present["end_time"] == now // DAY * DAY + DAY
