"""What a request, its key and its tenant may do with the prediction cache, and the headers that report it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, cast, get_args

import orjson
import pytest
from redis.asyncio import Redis

from caching import bypass
from caching.bypass import Bypass
from gateway.cache import cache_control
from gateway.cache.cache_control import CacheDirectives
from gateway.cache.policy import CachePolicy, hit_headers, policy_for
from gateway.protocols import request_body
from gateway.protocols.endpoint_table import ENDPOINTS
from hearth.paths import ROOT
from tenants import registry
from tenants.caller_limits import CacheTerms, Purges
from tenants.ids import new_id
from tests.caching.entries import entry_of
from tests.gateway.fixtures import callers
from tests.gateway.fixtures.tenants import DOORS, HELLO, MODEL, Gateway, in_database, until
from tests.tenants.customers import OPERATOR

SAMPLED = {**HELLO, "temperature": 1}

WISHES: list[tuple[dict[str, str], CacheDirectives]] = [
    ({}, CacheDirectives()),
    ({"cache-control": "No-Store , no-cache"}, CacheDirectives(no_store=True, no_cache=True)),
    ({"cache-control": "max-age=60, only-if-cached"}, CacheDirectives(max_age_seconds=60, only_if_cached=True)),
    ({"cache-control": 'max-age="7", max-age=9'}, CacheDirectives(max_age_seconds=7)),
    ({"cache-control": "max-age=99999999999"}, CacheDirectives(max_age_seconds=2**31)),
    ({"cache-control": "max-age=-1, max-age=1.5, max-age, max-age=x, unknown=1, ,"}, CacheDirectives()),
    ({"x-prediction-cache": " ON"}, CacheDirectives(switch="on")),
]


@pytest.mark.parametrize(("headers", "wish"), WISHES)
def test_headers_are_read_as_rfc_9111_says(headers: dict[str, str], wish: CacheDirectives) -> None:
    assert cache_control.parse_directives(headers) == wish


#: Terms, body, headers → the reason, whether it is kept, and the switch.
CASES: list[tuple[CacheTerms, dict[str, Any], dict[str, str], str | None, bool, str | None]] = [
    (CacheTerms(), HELLO, {}, None, True, None),
    (CacheTerms(mode="off"), HELLO, {"x-prediction-cache": "on"}, "off", False, "setting:cache_mode"),
    (CacheTerms(), SAMPLED, {}, "sampled", False, "header:x-prediction-cache=on"),
    (CacheTerms(), SAMPLED, {"x-prediction-cache": "on"}, None, True, None),
    (CacheTerms(mode="all"), SAMPLED, {}, None, True, None),
    (CacheTerms(), HELLO, {"cache-control": "no-store"}, "no-store", False, "header:cache-control"),
    (CacheTerms(), HELLO, {"cache-control": "no-cache"}, "no-cache", True, "header:cache-control"),
    (CacheTerms(), HELLO, {"x-prediction-cache": "off"}, "header", False, "header:x-prediction-cache"),
    (CacheTerms(), HELLO, {"x-prediction-cache": "write"}, "header", True, "header:x-prediction-cache"),
    (CacheTerms(), HELLO, {"x-prediction-cache": "read"}, None, False, None),
    (CacheTerms(may_read=False), HELLO, {}, "scope", True, "scope:cache:read"),
    (CacheTerms(may_write=False), HELLO, {}, None, False, None),
    (CacheTerms(may_read=False, may_write=False), HELLO, {}, "scope", False, "scope:cache:read"),
    (CacheTerms(), {**HELLO, "previous_response_id": "r"}, {}, "stateful", False, "field:previous_response_id"),
    (CacheTerms(), {**HELLO, "web_search_options": {}}, {}, "tools", False, "field:tools"),
    (CacheTerms(), {**HELLO, "tools": [{"type": "web_search"}]}, {}, "tools", False, "field:tools"),
    (CacheTerms(), {**HELLO, "tools": [{"type": ["function"]}]}, {}, "tools", False, "field:tools"),
    (CacheTerms(), {**HELLO, "tools": [{"type": "function"}]}, {}, None, True, None),
]


@pytest.mark.parametrize(("terms", "body", "headers", "reason", "writable", "switch"), CASES)
def test_a_bypass_has_a_reason_and_names_what_would_change_it(
    terms: CacheTerms,
    body: dict[str, Any],
    headers: dict[str, str],
    reason: str | None,
    writable: bool,
    switch: str | None,
    served: Any,
) -> None:
    call = request_body.parse(ENDPOINTS["/v1/chat/completions"], orjson.dumps(body))
    found = policy_for(replace(callers.caller(), cache=terms), call, served, headers)
    told = dict(found.miss_headers())
    assert (found.bypass, found.writable, found.name is not None) == (reason, writable, writable or reason is None)
    assert told.get(b"x-cache-switch") == (switch.encode() if switch else None)


def test_counts_of_tokens_are_kept_by_nothing_and_nothing_changes_that(served: Any) -> None:
    call = request_body.parse(ENDPOINTS["/v1/tokenize"], orjson.dumps({"model": MODEL, "prompt": "x"}))
    found = policy_for(callers.caller(), call, served, {"x-prediction-cache": "on"})
    assert (found.bypass, found.name, found.writable) == ("endpoint", None, False)
    assert found.miss_headers() == [(b"x-cache", b"bypass"), (b"x-cache-reason", b"endpoint")]


def test_the_page_for_developers_names_each_reason_and_what_changes_it() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    table = page.partition("| `x-cache-reason` | why")[2].partition("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
    told = {name: row[-1].strip("`") for row in rows for name in row[0].replace("`", "").split(", ")}
    assert told == {reason: bypass.SWITCHES.get(cast(Bypass, reason), "none") for reason in get_args(Bypass)}


def test_a_hit_tells_its_age_and_how_long_it_may_still_be_given() -> None:
    who = replace(callers.caller(), cache=CacheTerms(ttl_seconds=500))
    entry = entry_of(b"{}", stored_at=time.time() - 90.5, ttl_seconds=1000)
    told = dict(hit_headers(who, entry))
    assert told[b"age"] in {b"90", b"91"}
    assert told[b"cache-status"] == b"hearth; hit; ttl=%d" % (500 - int(told[b"age"]))
    early = dict(hit_headers(who, entry_of(b"{}", stored_at=time.time() + 90, ttl_seconds=100)))
    assert (early[b"age"], early[b"cache-status"]) == (b"0", b"hearth; hit; ttl=100")


@pytest.fixture
def served() -> Any:
    """Return what of a model its answers' names need."""
    return _Served()


class _Served:
    digest = "revision"


@pytest.mark.parametrize(
    ("url", "reason"), [("https://media.example/a.png", "media"), ("data:image/png;base64,AAAA", None)]
)
def test_media_that_an_engine_fetches_may_be_another_the_next_time(
    url: str, reason: str | None, served: Any, settings: Any
) -> None:
    settings.MEDIA_DOMAINS = ("media.example",)
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    body = {**HELLO, "messages": [{"role": "user", "content": parts}]}
    call = request_body.parse(ENDPOINTS["/v1/chat/completions"], orjson.dumps(body))
    assert policy_for(callers.caller(), call, served, {}).bypass == reason


async def test_only_if_cached_asks_no_engine_and_costs_a_request(gateway: Gateway) -> None:
    wanted = {"cache-control": "only-if-cached"}
    for body, reason in ((HELLO, None), (SAMPLED, "sampled")):
        refused = await gateway.ask(body, headers=wanted)
        assert (refused.status, orjson.loads(refused.body)["error"]["code"]) == (504, "not_cached")
        assert refused.answer_headers.get("x-cache-reason") == reason
        assert refused.answer_headers["x-should-retry"] == "false"
    assert (gateway.bodies(), gateway.starts()) == ([], [])
    first = await gateway.ask()
    hit = await gateway.ask(headers=wanted)
    assert (hit.status, hit.body, hit.answer_headers["x-cache"]) == (200, first.body, "hit")


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
async def test_a_header_that_comes_on_two_lines_counts_with_both(gateway: Gateway) -> None:
    lines = {"cache-control": "no-store", "Cache-Control": "max-age=60"}  # names are sent in lower case
    got = await gateway.ask(headers=lines)
    assert (got.status, got.answer_headers["x-cache-reason"]) == (200, "no-store")


async def test_what_is_told_of_a_miss_and_a_hit(gateway: Gateway) -> None:
    first, hit = await gateway.ask(), await gateway.ask()
    assert first.answer_headers["cache-status"] == "hearth; fwd=miss; stored"
    assert hit.answer_headers["cache-status"].startswith("hearth; hit; ttl=")
    assert hit.answer_headers["x-source-id"] == first.answer_headers["x-request-id"]
    old = await gateway.ask(headers={"cache-control": "max-age=0"})
    assert old.answer_headers["x-cache"] == "miss"
    wrong = await gateway.ask(headers={"x-prediction-cache": "maybe"})
    assert (wrong.status, orjson.loads(wrong.body)["error"]["param"]) == (400, "x-prediction-cache")


@pytest.mark.parametrize(
    ("age_seconds", "ttl_seconds", "own_ttl_seconds", "max_age_seconds", "given"),
    [
        (30, 60, 3600, None, True),
        (60, 60, 3600, None, False),
        (30, 3600, 60, None, True),
        (60, 3600, 60, None, False),
        (10, 60, 60, 40, True),
        (10, 60, 60, 10, False),
        (0, 60, 60, 0, False),
        (0, 60, 0, None, False),
        (-30, 60, 3600, None, True),
        (-30, 60, 0, None, False),
        (-30, 60, 60, 0, False),
    ],
)
def test_an_entry_is_given_while_it_is_younger_than_each_bound_whatever_other_clocks_say(
    age_seconds: int, ttl_seconds: int, own_ttl_seconds: int, max_age_seconds: int | None, given: bool
) -> None:
    who = replace(callers.caller(), cache=CacheTerms(ttl_seconds=own_ttl_seconds))
    answer = CachePolicy(
        name=b"n" * 32, digest=None, bypass=None, writable=True, only_if_cached=False, max_age_seconds=max_age_seconds
    )
    entry = entry_of(b"{}", stored_at=time.time() - age_seconds, ttl_seconds=ttl_seconds)
    assert answer.is_fresh(who, MODEL, entry) is given


async def test_an_entry_is_not_given_once_it_is_purged_or_older_than_the_policy_allows(gateway: Gateway) -> None:
    await gateway.ask()
    who = gateway.runtime.feed.snapshot.callers.caller(gateway.world.acme.key.public_id)
    [start] = gateway.starts()
    entry = entry_of(b"{}", source_id=start.request_id, key_id=who.key_id, stored_at=time.time())
    call = request_body.parse(ENDPOINTS["/v1/chat/completions"], orjson.dumps(HELLO))
    answer = policy_for(who, call, _Served(), {})  # type: ignore[arg-type]
    assert answer.is_fresh(who, MODEL, entry)
    purged = replace(who.cache, purges=Purges(everything=new_id()))
    for terms in (purged, replace(who.cache, ttl_seconds=-1)):
        assert not answer.is_fresh(replace(who, cache=terms), MODEL, entry)


@pytest.mark.parametrize("poison", ["altered", "cut", "another", "tenant"])
async def test_an_entry_that_was_put_there_by_others_is_a_miss_and_nothing_else(gateway: Gateway, poison: str) -> None:
    other = {**HELLO, "seed": 1}
    body = other if poison in {"altered", "cut"} else HELLO
    await gateway.ask(other)
    await gateway.ask(key=gateway.world.globex.secret)
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        await until(lambda: len(gateway.ends()) == 2)
        found = [key async for key in redis.scan_iter("*:prediction:*")]
        assert len(found) == 2
        mine = next(key for key in found if str(gateway.world.acme.tenant.id).encode() in key)
        theirs = next(key for key in found if key != mine)
        own, strangers = await redis.get(mine), await redis.get(theirs)
        assert isinstance(own, bytes)
        assert isinstance(strangers, bytes)
        altered = own[:-1] + bytes([own[-1] ^ 1])
        value = {"altered": altered, "cut": own[:-1], "another": own, "tenant": strangers}[poison]
        await redis.set(_key(gateway, body), value)
    gateway.runtime.components.prediction_cache.clear_local()
    from_store = {"x-prediction-cache": "read"}  # or an identical request that has just ended would answer
    got = await gateway.ask(body, headers=from_store)
    assert (got.status, got.answer_headers["x-cache"], len(gateway.bodies())) == (200, "miss", 3)


async def test_two_keys_share_an_answer_only_where_the_policy_lets_them(gateway: Gateway) -> None:
    await in_database(lambda: registry.set_policy(OPERATOR, gateway.world.acme.tenant, cache_scope="key"))
    world = gateway.world
    await until(lambda: _caller(gateway).policy.cache_scope == "key")
    salted = {**HELLO, "cache_salt": "s", "user": "u"}
    headers = {"x-session-id": "s"}
    results = [await gateway.ask(salted, key=key, headers=headers) for key in (world.acme.secret, world.globex.secret)]
    assert [each.answer_headers["x-cache"] for each in results] == ["miss", "miss"]
    one = _caller(gateway)
    call = request_body.parse(ENDPOINTS["/v1/chat/completions"], orjson.dumps(salted))
    names = {
        policy_for(replace(one, **changed), call, _Served(), headers).name  # type: ignore[arg-type]
        for changed in ({}, {"key_id": new_id()}, {"tenant_id": new_id()})
    }
    assert len(names) == 3


def _caller(gateway: Gateway) -> Any:
    return gateway.runtime.feed.snapshot.callers.caller(gateway.world.acme.key.public_id)


def _key(gateway: Gateway, body: dict[str, Any]) -> str:
    model = gateway.runtime.feed.snapshot.catalogue.find(_caller(gateway).tenant_id, MODEL)
    assert model is not None
    call = request_body.parse(ENDPOINTS["/v1/chat/completions"], orjson.dumps(body))
    key = policy_for(_caller(gateway), call, model, {}).redis_key(_caller(gateway))
    assert key is not None
    return key
