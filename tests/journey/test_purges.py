"""Purges, settings and scopes of the prediction cache by the API, as clients of a running gateway see them."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.journey.customers import Customer, customer
from tests.journey.instance import MODEL, Instance, Reply, wait_for

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]


@pytest.fixture(name="buyer", scope="module")
def _buyer(instance: Instance) -> Customer:
    return known(customer(instance, "buyer"))


@pytest.fixture(name="stranger", scope="module")
def _stranger(instance: Instance) -> Customer:
    return known(customer(instance, "stranger"))


def known(who: Customer, secret: str = "") -> Customer:
    """Return a customer once every gateway knows its key, or this other one of it."""
    wait_for(lambda: who.ask(secret).status == 200, "a key that every gateway knows", seconds=60)
    return who


def key(who: Customer, *scopes: str) -> dict[str, Any]:
    """Issue a further key, of all scopes that a key has by itself unless some are named."""
    named = {"scopes": list(scopes)} if scopes else {}
    issued = who.instance.operator(who.path("/keys"), {"name": "further", **named})
    assert issued.status == 201, issued
    made: dict[str, Any] = issued.json()
    known(who, made["secret"])
    return made


def ask(who: Customer, prompt: str, secret: str = "", **fields: Any) -> Reply:
    """Ask for one answer, the same each time."""
    said = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 4, "temperature": 0, **fields}
    answer = who.ask(secret, **said)
    assert answer.status == 200, answer
    return answer


def cache(answer: Reply) -> tuple[str, ...]:
    """Return what an answer says of the cache, and why it was passed by."""
    return tuple(answer.headers[name] for name in ("x-cache", "x-cache-reason") if name in answer.headers)


def becomes(expected: tuple[str, ...], who: Customer, prompt: str, secret: str = "", **fields: Any) -> None:
    """Ask until it is answered so; the gateways follow a change within a second."""
    wait_for(lambda: cache(ask(who, prompt, secret, **fields)) == expected, f"{expected} of {prompt}", seconds=60)


def stored(who: Customer, secret: str = "") -> tuple[str, str]:
    """Store a new answer; return its prompt and the request whose it is."""
    prompt = str(uuid4())
    first = ask(who, prompt, secret)
    assert cache(first) == ("miss",)
    becomes(("hit",), who, prompt, secret)
    return prompt, first.headers["x-request-id"]


def change(who: Customer, path: str, body: Any = None, method: str = "PUT") -> Reply:
    """Have an operator change something of the customer's."""
    answer = who.instance.operator(who.path(path), body, method=method)
    assert answer.status in {200, 201, 204}, answer
    return answer


@pytest.mark.parametrize("kind", ["everything", "model", "key", "request"])
def test_what_is_purged_is_asked_for_anew_and_no_other_answer(buyer: Customer, stranger: Customer, kind: str) -> None:
    other = key(buyer)
    prompt, source = stored(buyer)
    of_others, _ = stored(stranger)
    of_key, _ = stored(buyer, other["secret"])
    beside, _ = stored(buyer)
    named = {"everything": True, "model": MODEL, "key": buyer.key_id, "request": source}
    change(buyer, "/cache/purge", {kind: named[kind]}, "POST")
    becomes(("miss",), buyer, prompt)
    assert cache(ask(stranger, of_others)) == ("hit",)
    assert cache(ask(buyer, of_key)) == (("hit",) if kind in {"key", "request"} else ("miss",))
    assert cache(ask(buyer, beside)) == (("hit",) if kind == "request" else ("miss",))
    becomes(("hit",), buyer, prompt)


def test_a_tenant_a_project_and_a_key_each_say_what_is_kept(buyer: Customer, stranger: Customer) -> None:
    prompt = str(uuid4())
    sampled: dict[str, Any] = {"temperature": 1}
    assert cache(ask(buyer, prompt, **sampled)) == ("bypass", "sampled")
    change(buyer, "", {"cache_mode": "all"}, "PATCH")
    becomes(("hit",), buyer, prompt, **sampled)
    project = change(buyer, "/cache/settings", {"project": "default", "mode": "off"}).json()["id"]
    becomes(("bypass", "off"), buyer, prompt, **sampled)
    change(buyer, "/cache/settings", {"key": buyer.key_id, "mode": "deterministic"})
    becomes(("bypass", "sampled"), buyer, prompt, **sampled)
    change(buyer, "/cache/settings", {"key": buyer.key_id, "mode": "all", "ttl_seconds": 0})
    becomes(("miss",), buyer, prompt, **sampled)
    assert cache(ask(buyer, prompt, **sampled)) == ("miss",), "what lives for no time is not kept"
    own = change(buyer, "/cache/settings", {"key": buyer.key_id, "mode": "all"}).json()["id"]
    becomes(("hit",), buyer, prompt, **sampled)
    for setting in (own, project):
        change(buyer, f"/cache/settings/{setting}", method="DELETE")
    change(buyer, "", {"cache_mode": "deterministic"}, "PATCH")
    becomes(("bypass", "sampled"), buyer, prompt, **sampled)
    assert cache(ask(stranger, prompt, **sampled)) == ("bypass", "sampled")


def test_a_key_reads_and_stores_what_its_scopes_let_it(buyer: Customer) -> None:
    reads, writes, neither = (
        key(buyer, "inference", *scopes)["secret"] for scopes in (["cache:read"], ["cache:write"], [])
    )
    prompt, _ = stored(buyer)
    assert cache(ask(buyer, prompt, reads)) == ("hit",)
    for secret in (writes, neither):
        passed = ask(buyer, prompt, secret)
        assert (*cache(passed), passed.headers["x-cache-switch"]) == ("bypass", "scope", "scope:cache:read")
    unknown = str(uuid4())
    for secret, expected in ((reads, ("miss",)), (neither, ("bypass", "scope")), (reads, ("miss",))):
        assert cache(ask(buyer, unknown, secret)) == expected
    assert cache(ask(buyer, unknown, writes)) == ("bypass", "scope")
    becomes(("hit",), buyer, unknown, reads)
