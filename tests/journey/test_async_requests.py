"""A request that prefers an asynchronous answer runs as a Celery task and is polled."""

from __future__ import annotations

import os
import signal
from functools import partial
from uuid import uuid4

import pytest

from tests.journey.instance import MODEL, Instance, Reply, wait_for

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]

ASYNC = {"prefer": "respond-async"}


def _poll(instance: Instance, slug: str, request_id: str) -> Reply | None:
    answer = instance.call(f"/requests/{request_id}", instance.key(slug))
    return None if answer.status == 202 else answer


def test_a_deferred_request_is_accepted_run_and_billed_once(instance: Instance) -> None:
    accepted = instance.chat("globex", f"{uuid4()} Later, please.", headers=ASYNC)
    assert accepted.status == 202
    ticket = accepted.json()
    assert ticket["status"] == "queued"
    assert accepted.headers["location"] == ticket["url"]
    answer = wait_for(lambda: _poll(instance, "globex", ticket["id"]), "the answer", seconds=60)
    assert answer.status == 200
    assert answer.json()["choices"][0]["message"]["content"] is not None
    row = instance.usage("globex", ticket["id"])
    assert row["completion_tokens"] == answer.json()["usage"]["completion_tokens"]


def test_a_deferred_request_uses_the_tenants_prediction_cache(instance: Instance) -> None:
    prompt = f"{uuid4()} Once."
    direct = instance.chat("acme", prompt)
    ticket = instance.chat("acme", prompt, headers=ASYNC).json()
    answer = wait_for(lambda: _poll(instance, "acme", ticket["id"]), "the answer", seconds=60)
    assert answer.headers["x-cache"] == "hit"
    assert answer.json() == direct.json()


def test_a_stranger_cannot_poll_it(instance: Instance) -> None:
    ticket = instance.chat("globex", "Mine.", headers=ASYNC).json()
    foreign = instance.call(f"/requests/{ticket['id']}", instance.key("acme"))
    nothing = instance.call(f"/requests/{uuid4()}", instance.key("acme"))
    assert foreign.status == nothing.status == 404
    assert foreign.json()["error"]["code"] == nothing.json()["error"]["code"] == "request_not_found"


def test_a_key_of_another_project_or_without_the_scope_cannot_poll_it(instance: Instance) -> None:
    ticket = instance.chat("globex", "Mine.", headers=ASYNC).json()
    slug = f"p{uuid4().hex[:8]}"
    assert instance.operator("/tenants/globex/projects", {"slug": slug, "name": "Other"}).status == 201
    other = instance.operator("/tenants/globex/keys", {"name": "other", "project": slug}).json()["secret"]
    reader = {"name": "reader", "scopes": ["management:read"]}
    reading = instance.operator("/tenants/globex/keys", reader).json()["secret"]
    answers = [instance.call(f"/requests/{ticket['id']}", key) for key in (other, reading)]
    assert [(a.status, a.json()["error"]["code"]) for a in answers] == [
        (404, "request_not_found"),
        (403, "scope_missing"),
    ]


def test_a_failed_deferred_request_says_why(instance: Instance) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "word " * 9000}]}
    accepted = instance.call("/chat/completions", instance.key("globex"), body, headers=ASYNC)
    answer = wait_for(lambda: _poll(instance, "globex", accepted.json()["id"]), "the answer", seconds=60)
    assert answer.status == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_deferred_stream_is_refused(instance: Instance) -> None:
    answer = instance.chat("globex", "No.", headers=ASYNC, stream=True)
    assert answer.status == 400
    assert answer.json()["error"]["param"] == "stream"


@pytest.mark.long
def test_what_a_killed_worker_ran_is_run_again_and_charged_once(simulated: Instance) -> None:
    prompts = [f"{uuid4()} Tell me a long story." for _ in range(4)]
    fields = {"max_tokens": 2000, "ignore_eos": True}
    tickets = [simulated.chat("globex", prompt, headers=ASYNC, **fields).json()["id"] for prompt in prompts]
    (worker,) = [int(role["pid"]) for role in simulated.status()["roles"] if role["name"] == "inference"]
    os.kill(worker, signal.SIGKILL)
    for ticket in tickets:
        answer = wait_for(partial(_poll, simulated, "globex", ticket), "the answer", seconds=120)
        assert (answer.status, answer.headers["x-request-id"]) == (200, ticket)
        row = simulated.usage("globex", ticket)
        assert row["state"] == "complete"
        assert row["completion_tokens"] == answer.json()["usage"]["completion_tokens"]
