"""The advisor's page and API: what to change, its evidence, and nothing of another tenant."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone
from msgspec.structs import replace
from redis import Redis
from rest_framework.test import APIClient

from billing.ledger.usage_rows import UsageRow
from routing.prefixes import prompt_sketch
from routing.prefixes.prefix_hash import PromptMessage, prefix_hashes
from tenants import registry
from tenants.ids import TenantId
from tenants.isolation import keyspace
from tenants.models import User
from tests.portal import fixtures
from tests.portal.fixtures import Tenancy, World

SignIn = Callable[[User], Client]
PAGE = "/portal/tenants/acme/advisor/"
API = "/api/v1/tenants/acme/advice"
RULES = "Answer in plain words, and never promise a refund. " * 80


@pytest.fixture(autouse=True)
def no_sketches(world: World) -> Iterator[None]:
    """Leave no sketch behind."""
    yield
    with Redis.from_url(settings.REDIS_CACHE_URL) as redis:
        for tenancy in (world.acme, world.globex):
            redis.delete(keyspace.tenant_key(TenantId(tenancy.tenant.id), prompt_sketch.ROOM))


@pytest.fixture
def now() -> datetime:
    """A time two hours ago."""
    return timezone.now() - timedelta(hours=2)


def keep(tenancy: Tenancy, rows: Sequence[UsageRow], prompts: Sequence[str], **parameters: bytes) -> None:
    """Store the rows, each with the sketch of its system prompt."""
    fixtures.store(rows)
    with Redis.from_url(settings.REDIS_CACHE_URL) as redis:
        for row, text in zip(rows, prompts, strict=True):
            said = [PromptMessage(head=b"system", text=text.encode()), PromptMessage(head=b"user", text=b"Well?")]
            key = tenancy.tenant.id.bytes
            found = prompt_sketch.sketch(row.id, prefix_hashes(key, said), said, parameters, key=key)
            name = keyspace.tenant_key(TenantId(tenancy.tenant.id), prompt_sketch.ROOM)
            redis.zadd(name, {prompt_sketch.encode(found): time.time()})


def answers(world: World, tenancy: Tenancy, now: datetime, count: int) -> list[UsageRow]:
    """Return answers, two seconds apart."""
    return [fixtures.answered(world, tenancy, now + timedelta(seconds=2 * number), number) for number in range(count)]


def test_the_page_names_the_message_the_evidence_and_the_money(world: World, now: datetime, signed_in: SignIn) -> None:
    keep(world.acme, answers(world, world.acme, now, 25), [f"It is 14:03:{n}. {RULES}" for n in range(25)])
    page = signed_in(world.operator).get(PAGE).content.decode()
    row = page.split('data-testid="advice-prefix"')[1].split("</tr>")[0]
    assert "first message (system)" in row
    assert "24 of 25" in row
    # 600 uncached tokens of each of 24 requests, at the difference of the two prices
    assert "14,400" in row
    saved = 24 * 600 * (150_000 - 15_000)
    document = as_api(world.acme).get(API).json()
    assert document["pico_per_month"] == saved
    assert document["advice"][0]["shared_tokens"] == 0


def test_repeats_are_listed_by_why_they_ran(world: World, now: datetime) -> None:
    rows = answers(world, world.acme, now, 60)
    late = timedelta(hours=1, minutes=1)
    sampled = [replace(row, cache_result="bypass", cache_reason="sampled") for row in rows[:10]]
    keep(world.acme, sampled, ["Say A. " * 99] * 10)
    keep(world.acme, rows[10:20], [f"{n} B. " * 99 for n in range(10)])
    again = [replace(row, started_at=row.started_at + late, finished_at=row.finished_at + late) for row in rows[20:30]]
    keep(world.acme, again, [f"{n} B. " * 99 for n in range(10)])
    keep(world.acme, rows[30:40], ["Say C. " * 99] * 10)
    for number, row in enumerate(rows[40:50]):
        keep(world.acme, [row], ["Say D. " * 99], seed=str(number).encode())
    report = as_api(world.acme).get(API).json()
    advice = {each["reason"]: each for each in report["advice"]}
    assert {reason: each["requests"] for reason, each in advice.items()} == {
        "bypass:sampled": 9,
        "expired": 10,
        "gone": 9,
        "parameters:seed": 9,
    }
    assert report["repeats_in_month"] == 37
    assert "x-prediction-cache=on" in advice["bypass:sampled"]["text"]
    assert "1 h" in advice["expired"]["text"]
    # the whole request: 600 uncached, 400 cached and 100 completion tokens; a hit is free
    assert advice["gone"]["pico_per_month"] == 9 * (600 * 150_000 + 400 * 15_000 + 100 * 600_000)


def test_too_few_requests_are_no_evidence(world: World, now: datetime, signed_in: SignIn) -> None:
    keep(world.acme, answers(world, world.acme, now, 7), [f"{n}. {RULES}" for n in range(7)])
    page = signed_in(world.operator).get(PAGE).content.decode()
    assert "Too few requests" in page
    assert 'data-testid="advice"' not in page
    assert "7 " in page.split('data-testid="traffic"')[1]


def test_a_stranger_sees_nothing_and_changes_nothing(world: World, now: datetime, as_globex: APIClient) -> None:
    keep(world.acme, answers(world, world.acme, now, 25), [f"It is 14:03:{n}. {RULES}" for n in range(25)])
    keep(
        world.globex, answers(world, world.globex, now - timedelta(minutes=5), 25), [f"{n} {RULES}" for n in range(25)]
    )
    assert as_globex.get(API).status_code == 404
    own = as_globex.get(API.replace("acme", "globex")).json()
    assert own["requests"] == 25
    assert {each["traffic"]["key_id"] for each in own["advice"]} == {str(world.globex.key.id)}


def test_a_key_of_another_project_and_the_filter_see_only_that_project(
    world: World, now: datetime, as_operator: APIClient
) -> None:
    keep(world.acme, answers(world, world.acme, now, 25), [f"It is 14:03:{n}. {RULES}" for n in range(25)])
    other = registry.create_project(fixtures.OPERATOR, world.acme.tenant, slug="other", name="Other")
    assert as_operator.get(API, {"project": other.slug}).json()["requests"] == 0
    assert as_operator.get(API, {"project": world.acme.project.slug}).json()["requests"] == 25
    assert as_operator.get(API, {"project": "nowhere"}).status_code == 404


def test_advice_is_csv_too_and_savings_links_to_it(world: World, now: datetime, signed_in: SignIn) -> None:
    keep(world.acme, answers(world, world.acme, now, 25), [f"It is 14:03:{n}. {RULES}" for n in range(25)])
    client = signed_in(world.operator)
    text = b"".join(client.get("/portal/tenants/acme/advisor.csv")).decode()
    (row,) = csv.DictReader(io.StringIO(text.lstrip("\ufeff")))
    assert (row["kind"], row["reason"], row["requests"], row["of_requests"]) == ("prefix", "message 1", "24", "25")
    assert PAGE in client.get("/portal/tenants/acme/savings/").content.decode()


def as_api(tenancy: Tenancy) -> APIClient:
    """Return a client with the tenant's key."""
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {tenancy.secret}")
    return client


def test_a_requests_page_names_the_earlier_one_and_what_differs(world: World, now: datetime, signed_in: SignIn) -> None:
    rows = answers(world, world.acme, now, 5)
    rows[3:] = [replace(row, cache_result="bypass", cache_reason="no-cache") for row in rows[3:]]
    for row, temperature in zip(rows, (b"0", b"0.3", b"0.3", b"0.3", b"0.9"), strict=True):
        keep(world.acme, [row], ["Say E. " * 99], temperature=temperature)
    owner = signed_in(world.acme.owner)
    first, other, again, bypassed, bypassed_too = (
        owner.get(f"/portal/tenants/acme/requests/{row.id}/").content.decode() for row in rows
    )
    assert "Its prompt was new" in first and 'data-testid="earlier"' not in first
    assert "differs from the earlier one only in temperature" in other and f"requests/{rows[0].id}/" in other
    assert "The stored answer was gone" in again and f"requests/{rows[1].id}/" in again
    assert "leave out the request&#x27;s header cache-control" in bypassed
    # the same parameters would not have it looked up
    assert 'data-testid="bypass"' in bypassed_too and 'data-testid="repeated"' not in bypassed_too
    stranger = signed_in(world.globex.owner)
    assert stranger.get(f"/portal/tenants/acme/requests/{rows[1].id}/").status_code == 404
