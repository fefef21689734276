"""Requests answered later: one task answers, only their tenant finds them, none is forgotten."""

from __future__ import annotations

import datetime as dt
import json
import threading
from dataclasses import dataclass
from typing import cast
from uuid import UUID

import pytest
from django.db import connection
from django.db.models.functions import Now

from tenants import keys, registry
from tenants.audit import SYSTEM
from tenants.ids import KeyId, ProjectId, TenantId, new_id
from tenants.models import Project
from workers.deferred import store
from workers.deferred.store import Submission
from workers.models import DeferredRequest

pytestmark = pytest.mark.django_db(transaction=True)
BODY = b'{"model":"tiny-chat"}'


@dataclass(frozen=True)
class Sender:
    """A tenant and what it sends."""

    tenant_id: TenantId
    public_id: str
    submission: Submission


def sender(slug: str) -> Sender:
    tenant = registry.create_tenant(SYSTEM, slug=slug, name=slug)
    key = keys.issue(SYSTEM, Project.objects.get(tenant=tenant), name="k").key
    submission = Submission(
        tenant_id=cast(TenantId, tenant.id),
        project_id=cast(ProjectId, key.project_id),
        key_id=cast(KeyId, key.id),
        endpoint="/v1/chat/completions",
        headers={"x-session-id": "s1"},
        body=BODY,
    )
    return Sender(cast(TenantId, tenant.id), key.public_id, submission)


@pytest.fixture
def acme(db: None) -> Sender:
    return sender("acme")


def submit(who: Sender) -> UUID:
    return store.submit(who.submission, enqueue=lambda identity: None)


def age(identity: UUID, field: str, by: dt.timedelta) -> None:
    DeferredRequest.objects.filter(id=identity).update(**{field: Now() - by - dt.timedelta(seconds=1)})


def test_a_request_is_queued_claimed_and_answered(acme: Sender) -> None:
    sent: list[UUID] = []
    wanted = new_id()
    identity = store.submit(acme.submission, enqueue=sent.append, identity=wanted)
    assert sent == [identity] == [wanted]
    queued = store.find(acme.tenant_id, identity)
    assert queued is not None and (queued.state, queued.body) == ("queued", None)
    claimed = store.claim(identity)
    assert claimed is not None and claimed.submission == acme.submission
    assert (claimed.attempt, claimed.key_public_id) == (1, acme.public_id)
    assert store.finish(identity, 200, {"content-type": "application/json"}, b"{}")
    done = store.find(acme.tenant_id, identity)
    assert done is not None and (done.state, done.status, done.body) == ("done", 200, b"{}")
    assert done.headers == {"content-type": "application/json"} and done.finished_at is not None


def test_of_many_tasks_one_gets_the_request(acme: Sender) -> None:
    identity = submit(acme)
    gate, winners = threading.Barrier(12), []

    def race() -> None:
        gate.wait()
        winners.append(store.claim(identity))
        connection.close()

    threads = [threading.Thread(target=race) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 12
    assert sum(winner is not None for winner in winners) == 1


def test_the_first_answer_stays(acme: Sender) -> None:
    identity = submit(acme)
    assert not store.finish(identity, 200, {}, b"too early")
    store.claim(identity)
    assert store.finish(identity, 200, {}, b"first")
    assert not store.finish(identity, 200, {}, b"second")
    assert not store.fail(identity, "late")
    answer = store.find(acme.tenant_id, identity)
    assert answer is not None and answer.body == b"first"


def test_a_stranger_finds_nothing(acme: Sender) -> None:
    stranger = sender("globex")
    identity = submit(acme)
    assert store.find(stranger.tenant_id, identity) is None
    assert store.find(acme.tenant_id, new_id()) is None


def test_the_row_survives_a_broker_that_is_away(acme: Sender) -> None:
    def refuse(identity: UUID) -> None:
        raise ConnectionError

    identity = store.submit(acme.submission, enqueue=refuse)
    sent: list[UUID] = []
    assert store.requeue_lost(enqueue=sent.append) == 0
    age(identity, "created_at", store.QUEUE_LIMIT)
    assert store.requeue_lost(enqueue=sent.append) == 1
    assert sent == [identity]


def test_a_task_that_died_is_replaced_once(acme: Sender) -> None:
    identity = submit(acme)
    age(identity, "created_at", store.RUN_LIMIT)
    sent: list[UUID] = []
    for attempt in (1, 2):
        claimed = store.claim(identity)
        assert claimed is not None and claimed.attempt == attempt
        age(identity, "started_at", store.RUN_LIMIT)
        store.requeue_lost(enqueue=sent.append)
    assert sent == [identity]
    failed = store.find(acme.tenant_id, identity)
    assert failed is not None and (failed.state, failed.status) == ("failed", 500)
    assert failed.body is not None
    assert json.loads(failed.body)["error"]["type"] == "server_error"


def test_a_failure_is_an_openai_error(acme: Sender) -> None:
    identity = submit(acme)
    store.claim(identity)
    assert store.fail(identity, "The gateway stopped.")
    answer = store.find(acme.tenant_id, identity)
    assert answer is not None and answer.body is not None
    assert json.loads(answer.body) == {
        "error": {"message": "The gateway stopped.", "type": "server_error", "param": None, "code": "deferred_failed"}
    }


def test_past_their_time_bodies_are_erased_and_nothing_is_found(acme: Sender) -> None:
    answered, forgotten, kept = submit(acme), submit(acme), submit(acme)
    store.claim(answered)
    store.finish(answered, 200, {"a": "b"}, b"secret")
    for identity in (answered, forgotten):
        DeferredRequest.objects.filter(id=identity).update(expires_at=Now())
    assert store.expire() == 2
    assert store.expire() == 0
    assert store.claim(forgotten) is None
    assert store.find(acme.tenant_id, answered) is None
    rows = {row.id: row for row in DeferredRequest.objects.all()}
    assert (bytes(rows[answered].body), rows[answered].response, rows[answered].headers) == (b"", None, {})
    assert (rows[forgotten].state, rows[kept].state) == ("failed", "queued")
    assert bytes(rows[kept].body) == BODY
