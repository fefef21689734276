"""`hearth explain-route`, with decisions as gateways keep them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from redis import Redis

from catalogue.routing_policy import TERMS, parse
from hearth.cli.main import hearth as command
from routing import decision_record
from routing.explanation import Decision
from tests.routing.prompts import replicas
from tests.routing.test_explanation import candidate, decided

ONE, OTHER = replicas(2)


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    """The Redis that the command reads."""
    monkeypatch.delenv("REDIS_CACHE_URL", raising=False)
    with Redis.from_url(os.environ["REDIS_URL"]) as client:
        yield client


def kept(redis: Redis, *decisions: Decision) -> UUID:
    """Keep decisions for a new request, and return its id."""
    request_id = uuid4()
    for each in decisions:
        redis.lpush(decision_record.KEY, decision_record.encode(replace(each, request_id=request_id)))
    return request_id


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["explain-route", *map(str, arguments)])


def test_every_term_of_every_replica_is_shown(redis: Redis) -> None:
    warm = replace(candidate(ONE, backlog=0.5, prefill=0.1), drifts=True)
    cold = candidate(OTHER, prefill=2.0, displaced=0.25)
    shown = run(kept(redis, decided(cold, warm, reason="prefix"))).output.splitlines()
    assert shown[0] == "2001-09-09 01:46:40 UTC, model demo, tenant 00000000-0000-0000-0000-000000000008"
    assert shown[1] == "prefix: …000001 costs 1.650 s less than …000002; prefill differs most."
    assert shown[2] == (
        "The prompt has about 400 tokens; it differs from the nearest warm prefix after 100, in message 2."
    )
    assert [line.split() for line in shown[4:]] == [
        f"REPLICA IS COST {' '.join(term.upper() for term in TERMS)} WARM TOKENS REQUESTS".split(),
        ["000001", "chosen,drifts", "0.600", "0.500", "0.100", "0.000", "0.000", "0.000", "0.000", "100", "0"],
        ["000002", "home", "2.250", "0.000", "2.000", "0.000", "0.250", "0.000", "0.000", "100", "0"],
    ]


def test_what_is_in_host_memory_is_shown_with_the_time_of_its_reload(redis: Redis) -> None:
    holding = replace(candidate(ONE, reload=0.25), host_tokens=80)
    shown = run(kept(redis, decided(candidate(OTHER, prefill=2.0), holding, reason="prefix"))).output.splitlines()
    expected = "000001 chosen 0.250 0.000 0.000 0.250 0.000 0.000 0.000 100 (80 in host memory) 0"
    assert shown[5].split() == expected.split()


def test_a_session_that_stays_at_a_dearer_home_says_so(redis: Redis) -> None:
    stays = decided(candidate(ONE, backlog=0.5), candidate(OTHER), reason="session")
    shown = run(kept(redis, stays)).output
    assert "session: …000001 is the session's home, where it stays; …000002 costs 0.500 s less." in shown


def test_a_policy_that_is_not_the_default_is_named(redis: Redis) -> None:
    weighted = decided(candidate(ONE), candidate(OTHER), policy=parse("expected-seconds:decode=2"))
    assert "The policy is expected-seconds:decode=2." in run(kept(redis, weighted)).output
    assert "The policy is" not in run(kept(redis, decided(candidate(ONE), candidate(OTHER)))).output


def test_each_attempt_is_shown(redis: Redis) -> None:
    request_id = kept(redis, decided(candidate(ONE), candidate(OTHER)), decided(candidate(ONE), reason="only"))
    shown = run(request_id).output
    assert "load: …000001 waited longest for a request, and …000002 costs the same." in shown
    assert shown.index("waited longest") < shown.index("only: …000001 was the only replica that could be tried.")
    first, second = json.loads(run(request_id, "--json").output)
    assert (first["request_id"], first["decided_by"], first["runner_up"]) == (str(request_id), "idle", str(OTHER))
    assert (second["decided_by"], second["runner_up"]) == (None, None)
    assert [each["replica_id"] for each in first["candidates"]] == [str(ONE), str(OTHER)]
    assert first["candidates"][0]["cost"] == 0.0


def test_what_is_not_kept_or_cannot_be_read_is_said(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = run(uuid4())
    assert (unknown.exit_code, "No decision is kept for request" in unknown.output) == (1, True)
    assert run("yesterday").exit_code == 2
    monkeypatch.setenv("REDIS_CACHE_URL", "redis://127.0.0.1:9/0")
    away = run(uuid4())
    assert (away.exit_code, "Redis cannot be read" in away.output) == (1, True)


@pytest.mark.parametrize("arguments", [(), (ONE, "--key", "x"), ("--body", "-"), (ONE, "--body", "-", "--key", "x")])
def test_either_a_kept_decision_is_shown_or_a_new_one_made(arguments: tuple[object, ...]) -> None:
    refused = run(*arguments)
    assert (refused.exit_code, "Give either REQUEST_ID, or --body and --key." in refused.output) == (2, True)
