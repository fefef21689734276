"""Usage by the caller's tags: in the list of requests, in sums, in CSV, and for nobody else."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from billing.models import UsageRecord
from billing.reports import tags
from portal.pages import breakdown
from tenants.models import User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignedIn = Callable[[User], Client]
BY_APP = "/api/v1/usage/breakdown?group_by=tag&tag=app"


@pytest.fixture
def used(world: World) -> World:
    """Acme: one answer for search, a hit and a failure for chat, an answer and a refusal without. Globex: search."""
    now = timezone.now() - timedelta(minutes=30)
    replace = msgspec.structs.replace
    row = fixtures.answered(world, world.acme, now, 5)
    refused = replace(row, id=fixtures.request_id(now, 6), state="refused", http_status=429, refusals=3, ttft_ms=None)
    fixtures.store(
        [
            replace(fixtures.answered(world, world.acme, now, 1), tags={"app": "search", "team": "a"}),
            replace(fixtures.predicted(world, world.acme, now, 2), tags={"app": "chat"}),
            replace(fixtures.failed(world, world.acme, now, 3), tags={"app": "chat"}),
            replace(fixtures.answered(world, world.globex, now, 4), tags={"app": "search"}),
            row,
            replace(refused, prompt_tokens=0, cached_prompt_tokens=0, completion_tokens=0),
        ]
    )
    return world


def groups(answer: Any) -> dict[str, dict[str, int]]:
    assert answer.status_code == 200, answer.content
    return {group["name"]: group["sums"] for group in answer.json()["groups"]}


def test_sums_by_tag_are_those_of_all_requests(used: World, as_acme: APIClient) -> None:
    found = groups(as_acme.get(BY_APP))
    assert {name: sums["requests"] for name, sums in found.items()} == {"search": 1, "chat": 2, "": 1}
    assert found["chat"]["prediction_hits"] == found["chat"]["errors"] == 1
    assert found[""]["refused_requests"] == 3
    total = as_acme.get(BY_APP).json()["total"]
    assert {name: sum(sums[name] for sums in found.values()) for name in total} == total
    assert {name: sums["requests"] for name, sums in groups(as_acme.get(f"{BY_APP[:-3]}team")).items()} == {
        "a": 1,
        "": 3,
    }


def test_more_values_than_are_listed_are_one_group(
    used: World, as_acme: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tags, "MOST_VALUES", 1)
    found = groups(as_acme.get(BY_APP))
    total = as_acme.get(BY_APP).json()["total"]
    assert len(found) == 2
    assert tags.OTHERS in found
    assert {name: sum(sums[name] for sums in found.values()) for name in total} == total


def test_too_many_requests_are_not_read(used: World, as_acme: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "MOST_REQUESTS", 6)
    answer = as_acme.get(BY_APP)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "period")
    assert "at most 6 requests; this one has 7" in answer.json()["error"]["message"]


def test_requests_are_found_by_tag_and_shown_with_theirs(used: World, as_acme: APIClient) -> None:
    [found] = as_acme.get("/api/v1/usage?tag=app%3Dsearch").json()["data"]
    assert found["tags"] == {"app": "search", "team": "a"}
    assert as_acme.get("/api/v1/usage?tag=app%3Dsea").json()["data"] == []
    answer: Any = as_acme.get("/api/v1/usage?tag=app%3Dsearch&format=csv")
    [row] = csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode()))
    assert json.loads(row["tags"]) == {"app": "search", "team": "a"}


@pytest.mark.parametrize("query", [
    "usage?tag=app", "usage?tag=%3Da", "usage?tag=a%00%3Db", "usage/breakdown?group_by=tag",
    "usage/breakdown?group_by=model&tag=app", "usage/breakdown?group_by=tag&tag=a%00",
])  # fmt: skip
def test_a_tag_that_is_none_is_refused(used: World, as_acme: APIClient, query: str) -> None:
    answer = as_acme.get(f"/api/v1/{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tag")


@pytest.mark.parametrize("name", ["1", "'; SELECT 1 --", "%s", "{}", "app,team"])
def test_a_name_of_any_form_is_only_a_name(used: World, as_acme: APIClient, name: str) -> None:
    row = fixtures.answered(used, used.acme, timezone.now() - timedelta(minutes=30), 9)
    fixtures.store([msgspec.structs.replace(row, tags={name: "x"})])
    answer = as_acme.get("/api/v1/usage/breakdown", {"group_by": "tag", "tag": name})
    assert groups(answer)["x"]["requests"] == 1


def test_a_stranger_sees_none(used: World, as_globex: APIClient) -> None:
    assert {name: sums["requests"] for name, sums in groups(as_globex.get(BY_APP)).items()} == {"search": 1}
    assert as_globex.get("/api/v1/usage?tag=team%3Da").json()["data"] == []
    assert as_globex.get(f"{BY_APP}&tenant=acme").status_code == 404


def test_pages_show_and_filter_them(used: World, signed_in: SignedIn) -> None:
    owner, page = signed_in(used.acme.owner), "/portal/tenants/acme"
    shown = owner.get(f"{page}/requests/?tag=app%3Dsearch").content.decode()
    assert shown.count('data-testid="request"') == 1
    record = UsageRecord.objects.get(tags={"app": "search", "team": "a"})
    assert "app=search" in owner.get(f"{page}/requests/{record.id}/").content.decode()
    by_tag = owner.get(f"{page}/usage/?by=tag&tag=app").content.decode()
    assert all(f'data-testid="usage-by-{name}"' in by_tag for name in ("search", "chat", "without this tag"))
    answer: Any = owner.get(f"{page}/usage-by.csv?by=tag&tag=app")
    assert b"tag,,chat,2" in b"".join(answer.streaming_content)


def test_a_page_names_the_first_groups_and_adds_up_the_others(
    used: World, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakdown, "MOST_ROWS", 1)
    owner, page = signed_in(used.acme.owner), "/portal/tenants/acme"
    by_tag = owner.get(f"{page}/usage/?by=tag&tag=app").content.decode()
    assert by_tag.count('data-testid="usage-by-') == 2
    assert "2 others, which the CSV has" in by_tag
    by_key = owner.get(f"{page}/usage/?by=key").content.decode()
    assert "TTFT" in by_key
    assert "others" not in by_key
