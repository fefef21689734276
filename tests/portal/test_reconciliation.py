"""The page and the API of reconciliation: the last comparison, sums that differ, engine processes. For operators."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from django.test import Client
from rest_framework.test import APIClient

from reconciliation.models import BookGap, BootResult, Comparison
from tenants.models import User
from tests.portal import fixtures
from tests.portal.conftest import error_of
from tests.portal.fixtures import World
from workers.fleet import deployments
from workers.models import EngineBoot, Replica

SignIn = Callable[[User], Client]
BOOTS, SUMMARY, PAGE = "/api/v1/reconciliation/boots", "/api/v1/reconciliation", "/portal/reconciliation/"
NOON = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)


@pytest.fixture
def boots(world: World) -> list[EngineBoot]:
    """Three processes of one replica, the newest with a gap, and a closed month that differs."""
    pool = deployments.ensure_pool(fixtures.OPERATOR, name="local", kind="simulated")
    node = deployments.ensure_node(fixtures.OPERATOR, pool=pool, name="n1")
    deployment = deployments.create(fixtures.OPERATOR, name="chat", revision=world.revision, pools=[pool], replicas=1)
    replica = Replica.objects.create(deployment=deployment, revision=world.revision, node=node)
    made = [
        EngineBoot.objects.create(
            replica=replica,
            generation=number,
            started_at=NOON,
            ended_at=NOON + timedelta(hours=number),
            end="orderly",
            prompt_tokens=40,
            completion_tokens=7 * number,
        )
        for number in (1, 2, 3)
    ]
    for boot, state in zip(made, ("equal", "bounded", "gap"), strict=True):
        BootResult.objects.create(boot=boot, state=state, gap_tokens=14 if state == "gap" else 0, note=f"about {state}")
    row = fixtures.answered(world, world.acme, NOON + timedelta(minutes=1), 1, replica_id=replica.id)
    fixtures.store([msgspec.structs.replace(row, replica_generation=3)])
    Comparison.objects.create(finished_at=NOON, boots=3, boot_gaps=1, gap_tokens=14, books=5, book_gaps=1)
    BookGap.objects.create(
        tenant_id=world.acme.tenant.id, month="2026-02", book="closed month", currency="USD", usage_pico=5, book_pico=4
    )
    return made


def test_an_operator_reads_the_last_comparison(as_operator: APIClient, boots: list[EngineBoot]) -> None:
    found = as_operator.get(SUMMARY).json()
    assert (found["compared_boots"], found["boot_gaps"], found["compared_books"], found["book_gaps"]) == (3, 1, 5, 1)
    [book] = found["books"]
    assert (book["tenant"], book["book"], book["usage_pico"], book["book_pico"]) == ("acme", "closed month", 5, 4)


def test_processes_are_paged_filtered_and_downloaded(as_operator: APIClient, boots: list[EngineBoot]) -> None:
    first = as_operator.get(BOOTS, {"limit": 2}).json()
    assert [each["generation"] for each in first["data"]] == [3, 2]
    gap = first["data"][0]
    assert (gap["counted_tokens"], gap["used_tokens"], gap["by_purpose"]) == (61, 1100, {"tenant": 1100})
    assert gap["candidates"] == [str(fixtures.request_id(NOON + timedelta(minutes=1), 1))]
    second = as_operator.get(BOOTS, {"limit": 2, "after": first["next_after"]}).json()
    assert ([each["generation"] for each in second["data"]], second["has_more"]) == ([1], False)
    assert [each["state"] for each in as_operator.get(BOOTS, {"state": "bounded"}).json()["data"]] == ["bounded"]
    assert error_of(as_operator.get(BOOTS, {"state": "good"}))["param"] == "state"
    header, *rows = b"".join(as_operator.get(BOOTS, {"format": "csv", "state": "gap"})).decode().splitlines()
    row = dict(zip(header.split(","), rows[0].split(","), strict=True))
    assert (len(rows), row["gap_tokens"], row["tenant_tokens"], row["canary_tokens"]) == (1, "14", "1100", "0")


def test_the_page_shows_what_differs_and_links_to_requests(
    signed_in: SignIn, world: World, boots: list[EngineBoot]
) -> None:
    browser = signed_in(world.operator)
    page = browser.get(PAGE).content.decode()
    assert "closed month USD" in page and "about gap" in page
    assert f"/portal/requests/?id={fixtures.request_id(NOON + timedelta(minutes=1), 1)}" in page
    only = browser.get(PAGE, {"state": "equal"}).content.decode()
    assert f"boot-{boots[0].id}" in only and f"boot-{boots[2].id}" not in only
    assert browser.get(PAGE, {"state": "good"}).status_code == 400
    assert b"".join(browser.get("/portal/reconciliation.csv")).decode().count("\n") == 4


def test_members_and_keys_of_tenants_find_neither(
    signed_in: SignIn, as_acme: APIClient, world: World, boots: list[EngineBoot]
) -> None:
    for url in (SUMMARY, BOOTS):
        assert as_acme.get(url).status_code in {401, 403}
    member = signed_in(world.acme.owner)
    for url in (PAGE, "/portal/reconciliation.csv"):
        assert member.get(url).status_code == 404
