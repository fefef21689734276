"""Requests answered later: one task at a time runs one, only their tenant finds them, none is forgotten."""

from __future__ import annotations

import datetime as dt
import json
import threading
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

import pytest
from django.db import connection
from django.db.models.functions import Now

from tenants import registry
from tenants.audit import SYSTEM
from tenants.ids import KeyId, ProjectId, TenantId, new_id
from tenants.keys import keys
from tenants.models import Project
from workers.deferred import claims, store
from workers.deferred.claims import Claim
from workers.deferred.store import Repetition, Submission
from workers.errors import Abandoned, KeyReused, TooManyUnfinished
from workers.models import DeferredRequest

pytestmark = pytest.mark.django_db(transaction=True)
BODY = b'{"model":"tiny-chat"}'
SOON = dt.timedelta()


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
    return store.submit(who.submission)


def claim() -> Claim:
    claimed = claims.claim()
    assert claimed is not None
    return claimed


def row(identity: UUID) -> DeferredRequest:
    return DeferredRequest.objects.get(id=identity)


def past(identity: UUID, field: str) -> None:
    DeferredRequest.objects.filter(id=identity).update(**{field: Now() - dt.timedelta(seconds=1)})


def lose_worker(identity: UUID) -> int:
    """Let the lease and the time to renew it pass."""
    past(identity, "lease_until")
    assert claims.take_over() == 0, "its worker may still renew"
    past(identity, "takeover_at")
    return claims.take_over()


def test_a_request_is_queued_claimed_and_answered(acme: Sender) -> None:
    wanted = new_id()
    identity = store.submit(acme.submission, identity=wanted)
    assert identity == wanted
    queued = store.find(acme.tenant_id, identity)
    assert queued is not None and (queued.state, queued.body) == ("queued", None)
    claimed = claim()
    assert (claimed.id, claimed.submission) == (identity, acme.submission)
    assert (claimed.attempt, claimed.key_public_id) == (1, acme.public_id)
    assert claims.finish(claimed, 200, {"content-type": "application/json"}, b"{}")
    done = store.find(acme.tenant_id, identity)
    assert done is not None and (done.state, done.status, done.body) == ("done", 200, b"{}")
    assert done.headers == {"content-type": "application/json"} and done.finished_at is not None
    assert bytes(row(identity).body) == b"", "the prompt is not stored for longer than it is needed"


def test_of_many_tasks_one_gets_the_request(acme: Sender) -> None:
    submit(acme)
    gate, winners = threading.Barrier(12), []

    def race() -> None:
        gate.wait()
        winners.append(claims.claim())
        connection.close()

    threads = [threading.Thread(target=race) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 12
    assert sum(winner is not None for winner in winners) == 1


def test_tenants_take_turns_however_many_one_has_sent(acme: Sender) -> None:
    first = [submit(acme) for _ in range(4)]
    globex = sender("globex")
    second = [submit(globex) for _ in range(2)]
    assert [claim().id for _ in range(6)] == [first[0], second[0], first[1], second[1], first[2], first[3]]
    assert claims.claim() is None


def test_the_first_answer_stays_and_storing_it_again_is_no_error(acme: Sender) -> None:
    identity = submit(acme)
    claimed = claim()
    assert claims.finish(claimed, 200, {}, b"first")
    assert claims.finish(claimed, 200, {}, b"first"), "a commit without a reply is repeated"
    assert not claims.fail(claimed, "late")
    answer = store.find(acme.tenant_id, identity)
    assert answer is not None and answer.body == b"first"


def test_a_stranger_finds_nothing(acme: Sender) -> None:
    stranger = sender("globex")
    identity = submit(acme)
    assert store.find(stranger.tenant_id, identity) is None
    assert store.find(acme.tenant_id, new_id()) is None


def test_a_dead_worker_is_replaced_and_can_store_nothing_any_more(acme: Sender) -> None:
    identity = submit(acme)
    stale = claim()
    assert claims.take_over() == 0, "its lease has not ended"
    assert lose_worker(identity) == 1
    second = claim()
    assert (second.id, second.attempt) == (identity, 2)
    assert claims.renew([stale, second]) == {identity}
    for late in (
        claims.finish(stale, 200, {}, b"stale"),
        claims.fail(stale, "x"),
        claims.retry(stale, SOON, crashed=False),
    ):
        assert not late
    assert claims.finish(second, 200, {}, b"fresh")
    assert not claims.finish(stale, 200, {}, b"stale")


def test_a_worker_that_could_not_renew_for_a_while_keeps_its_request(acme: Sender) -> None:
    identity = submit(acme)
    claimed = claim()
    past(identity, "lease_until")
    assert claims.take_over() == 0
    assert claims.renew([claimed]) == {identity}
    past(identity, "started_at")
    assert claims.take_over() == 0 and row(identity).takeover_at is None
    assert claims.finish(claimed, 200, {}, b"")


def test_a_request_whose_workers_die_again_and_again_fails(acme: Sender) -> None:
    identity = submit(acme)
    for attempt in range(1, claims.MAX_CRASHES + 1):
        assert claim().attempt == attempt
        assert lose_worker(identity) == 1
    failed = store.find(acme.tenant_id, identity)
    assert failed is not None and (failed.state, failed.status) == ("failed", 500)
    assert failed.body is not None
    assert json.loads(failed.body)["error"]["code"] == "deferred_failed"
    assert claims.claim() is None


def test_a_failure_that_may_pass_is_tried_again_after_a_pause(acme: Sender) -> None:
    identity = submit(acme)
    assert claims.retry(claim(), dt.timedelta(hours=1), crashed=False)
    assert (claims.claim(), claims.waiting(10)) == (None, 0)
    past(identity, "retry_at")
    assert claims.waiting(10) == 1
    assert claim().attempt == 2


def test_the_last_hour_of_its_day_is_for_reading_the_answer(acme: Sender) -> None:
    identity = submit(acme)
    claimed = claim()
    DeferredRequest.objects.filter(id=identity).update(expires_at=Now() + claims.LAST_HOUR)
    assert not claims.retry(claimed, SOON, crashed=False)
    assert claims.finish(claimed, 503, {}, b"still not")


def test_crashes_are_retried_less_often_than_refusals(acme: Sender) -> None:
    submit(acme)
    for _ in range(10):
        assert claims.retry(claim(), SOON, crashed=False)
    for _ in range(claims.MAX_CRASHES - 1):
        assert claims.retry(claim(), SOON, crashed=True)
    assert not claims.retry(claim(), SOON, crashed=True)


def test_a_failure_is_an_openai_error(acme: Sender) -> None:
    identity = submit(acme)
    assert claims.fail(claim(), "The gateway stopped.")
    answer = store.find(acme.tenant_id, identity)
    assert answer is not None and answer.body is not None
    assert json.loads(answer.body) == {
        "error": {"message": "The gateway stopped.", "type": "server_error", "param": None, "code": "deferred_failed"}
    }


def test_past_their_day_rows_are_deleted_and_nothing_is_found(acme: Sender) -> None:
    answered, forgotten, kept = submit(acme), submit(acme), submit(acme)
    claims.finish(claim(), 200, {"a": "b"}, b"secret")
    for identity in (answered, forgotten):
        DeferredRequest.objects.filter(id=identity).update(expires_at=Now())
    assert store.find(acme.tenant_id, answered) is None
    assert store.expire() == 2
    assert store.expire() == 0
    assert list(DeferredRequest.objects.values_list("id", flat=True)) == [kept]


def test_an_acceptance_that_nobody_waits_for_stores_nothing(acme: Sender) -> None:
    identity = new_id()
    with pytest.raises(Abandoned):
        store.submit(acme.submission, identity=identity, may_commit=lambda: False)
    assert not DeferredRequest.objects.exists()
    assert not store.is_stored(acme.submission, identity)
    store.submit(acme.submission, identity=identity)
    assert store.is_stored(acme.submission, identity)
    assert DeferredRequest.objects.count() == 1


def test_one_key_is_accepted_once_and_names_one_request(acme: Sender) -> None:
    once = Repetition(name=b"n", request=b"r")
    identity = store.submit(acme.submission, repetition=once)
    assert store.submit(acme.submission, repetition=once) == identity
    with pytest.raises(KeyReused):
        store.submit(acme.submission, repetition=Repetition(name=b"n", request=b"other"))
    assert DeferredRequest.objects.count() == 1


def test_a_tenant_has_so_many_requests_and_bytes_and_a_stranger_its_own(
    acme: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    globex = sender("globex")
    monkeypatch.setattr(store, "MAX_UNFINISHED", 2)
    submit(acme), submit(acme)
    with pytest.raises(TooManyUnfinished):
        submit(acme)
    submit(globex)
    claims.finish(claim(), 200, {}, b"")
    submit(acme)
    monkeypatch.setattr(store, "MAX_UNFINISHED", 100)
    monkeypatch.setattr(store, "MAX_UNFINISHED_BYTES", 3 * len(BODY))
    submit(acme)
    with pytest.raises(TooManyUnfinished):
        submit(acme)
    monkeypatch.setattr(store, "MAX_UNFINISHED_BYTES", 5 * len(BODY) - 1)
    with pytest.raises(TooManyUnfinished):
        store.submit(replace(acme.submission, body=2 * BODY))


def test_of_many_acceptances_at_once_none_exceeds_the_cap(acme: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_UNFINISHED", 3)
    gate = threading.Barrier(8)

    def race() -> None:
        gate.wait()
        try:
            submit(acme)
        except TooManyUnfinished:
            pass
        finally:
            connection.close()

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert DeferredRequest.objects.count() == 3
