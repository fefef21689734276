"""A change that is sent again with the same ``Idempotency-Key`` is made once, and its response is replayed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
import pytest
from django.db import OperationalError, connection, transaction
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from portal.api.tenants.keys import KeysView
from retention import erasure
from retention.tasks import maintain
from tenants import registry
from tenants.audit import SYSTEM
from tenants.idempotency import stored_responses
from tenants.idempotency.models import StoredResponse
from tenants.models import ApiKey, Membership, Tenant, User
from tests.portal import fixtures
from tests.portal.conftest import bearer, error_of
from tests.portal.fixtures import World

KEYS = "/api/v1/tenants/acme/keys"
PROJECTS = "/api/v1/tenants/acme/projects"


def send(client: Client, path: str, body: Any, key: str = "deploy-1") -> Any:
    """Send a change with an ``Idempotency-Key``."""
    return client.post(path, orjson.dumps(body), content_type="application/json", headers={"Idempotency-Key": key})


def new_key(world: World, name: str = "ci") -> dict[str, Any]:
    """Return the body of a request for a key."""
    return {"name": name, "project": world.acme.project.slug}


def test_the_same_key_is_returned_and_no_second_one_is_made(world: World, as_acme: APIClient) -> None:
    before = ApiKey.objects.count()
    first, again = (send(as_acme, KEYS, new_key(world)) for _ in range(2))
    assert first.status_code == again.status_code == 201
    assert first.json()["secret"]
    assert again.content == first.content
    assert again["content-type"] == first["content-type"]
    assert "idempotent-replayed" not in first
    assert again["idempotent-replayed"] == "true"
    assert ApiKey.objects.count() == before + 1


def test_a_refusal_that_quotes_a_long_value_is_short(world: World, as_acme: APIClient) -> None:
    bodies: list[dict[str, Any]] = [{"scopes": ["y" * 200_000]}, {"z" * 200_000: 1}]
    for number, wrong in enumerate(bodies):
        refused = send(as_acme, KEYS, {**new_key(world), **wrong}, key=str(number))
        assert (refused.status_code, len(error_of(refused)["message"]) <= 4000) == (400, True)
    assert error_of(refused)["param"] == f"{'z' * 100}…{'z' * 99}"
    assert all(row.sealed is not None and len(row.sealed) < 5000 for row in StoredResponse.objects.all())


def test_what_is_stored_is_sealed(world: World, as_acme: APIClient) -> None:
    secret = send(as_acme, KEYS, new_key(world)).json()["secret"]
    row = StoredResponse.objects.get()
    assert row.sealed is not None
    assert secret.encode() not in bytes(row.sealed)
    assert row.tenant_id == world.acme.tenant.id


def test_another_body_or_query_under_a_used_key_is_refused(world: World, as_acme: APIClient) -> None:
    send(as_acme, KEYS, new_key(world))
    for path, body in ((KEYS, new_key(world, "other")), (f"{KEYS}?x=1", new_key(world))):
        refused = send(as_acme, path, body)
        assert refused.status_code == 422
        assert error_of(refused)["code"] == "idempotency_key_reused"
        assert error_of(refused)["doc_url"].endswith("/docs/errors/idempotency_key_reused")


def test_without_the_header_each_request_is_a_change(world: World, as_acme: APIClient) -> None:
    found = {as_acme.post(KEYS, new_key(world), format="json").json()["id"] for _ in range(2)}
    assert len(found) == 2
    assert not StoredResponse.objects.exists()


def test_at_another_address_the_key_is_another_one(world: World, as_acme: APIClient) -> None:
    send(as_acme, KEYS, new_key(world))
    made = send(as_acme, PROJECTS, {"slug": "web", "name": "Web"})
    assert made.status_code == 201
    assert "idempotent-replayed" not in made


def test_a_refused_change_is_refused_again_and_changes_nothing(world: World, as_acme: APIClient) -> None:
    body = {"slug": world.acme.project.slug, "name": "again"}
    first, again = (send(as_acme, PROJECTS, body) for _ in range(2))
    assert (first.status_code, again.status_code) == (409, 409)
    assert error_of(again)["code"] == "already_exists"
    assert again["idempotent-replayed"] == "true"


def test_what_was_not_there_may_be_tried_again_with_the_same_key(as_operator: APIClient) -> None:
    path, body = "/api/v1/tenants/initech/projects", {"slug": "web", "name": "Web"}
    assert send(as_operator, path, body).status_code == 404
    assert not StoredResponse.objects.exists()
    assert send(as_operator, "/api/v1/tenants", {"slug": "initech", "name": "Initech"}).status_code == 201
    assert send(as_operator, path, body).status_code == 201


def test_a_key_is_printable_and_not_too_long(world: World, as_acme: APIClient) -> None:
    for text in ("", "x" * 256, "\t"):
        refused = send(as_acme, KEYS, new_key(world), text)
        assert refused.status_code == 400
        assert error_of(refused)["param"] == "Idempotency-Key"


def test_a_body_above_the_limit_is_refused(world: World, as_acme: APIClient, settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 20
    refused = send(as_acme, KEYS, new_key(world))
    assert refused.status_code == 413
    assert error_of(refused)["code"] == "body_too_large"


def test_a_stranger_with_the_same_key_sees_nothing(
    world: World, as_acme: APIClient, as_globex: APIClient, signed_in: Callable[[User], Client]
) -> None:
    made = send(as_acme, KEYS, new_key(world)).json()
    for stranger in (as_globex, signed_in(world.globex.owner), APIClient()):
        refused = send(stranger, KEYS, new_key(world))
        assert refused.status_code in {401, 404}
        assert made["secret"].encode() not in refused.content
    own = send(signed_in(world.acme.owner), KEYS, new_key(world))
    assert own.status_code == 201
    assert own.json()["id"] != made["id"]


def test_nothing_is_replayed_after_the_role_was_taken_away(world: World, signed_in: Callable[[User], Client]) -> None:
    owner = signed_in(world.acme.owner)
    made = send(owner, KEYS, new_key(world)).json()
    member = Membership.objects.filter(user=world.acme.owner, tenant=world.acme.tenant)
    for change in (lambda: member.update(role="viewer"), lambda: member.update(role="admin"), member.delete):
        change()
        refused = send(owner, KEYS, new_key(world))
        assert refused.status_code in {403, 404}
        assert made["secret"].encode() not in refused.content
    assert ApiKey.objects.filter(name="ci").count() == 1


def test_nothing_is_replayed_after_the_key_was_narrowed(world: World, as_acme: APIClient) -> None:
    made = send(as_acme, KEYS, new_key(world)).json()
    ApiKey.objects.filter(id=world.acme.key.id).update(allowed_models=[fixtures.MODEL])
    refused = send(as_acme, KEYS, new_key(world))
    assert refused.status_code == 403
    assert made["secret"].encode() not in refused.content


def test_nothing_is_replayed_with_a_revoked_key(world: World, as_acme: APIClient) -> None:
    send(as_acme, KEYS, new_key(world))
    ApiKey.objects.filter(id=world.acme.key.id).update(revoked_at=timezone.now())
    assert send(as_acme, KEYS, new_key(world)).status_code == 401


def test_after_a_day_the_key_is_new(world: World, as_acme: APIClient) -> None:
    first = send(as_acme, KEYS, new_key(world)).json()
    StoredResponse.objects.update(created_at=timezone.now() - timedelta(hours=24, seconds=1))
    assert send(as_acme, KEYS, new_key(world)).json()["id"] != first["id"]
    assert StoredResponse.objects.count() == 1


def test_retention_deletes_what_is_a_day_old(world: World, as_acme: APIClient) -> None:
    send(as_acme, KEYS, new_key(world))
    send(as_acme, PROJECTS, {"slug": "web", "name": "Web"})
    old = StoredResponse.objects.earliest("id")
    StoredResponse.objects.filter(id=old.id).update(created_at=timezone.now() - timedelta(hours=25))
    maintain()
    assert StoredResponse.objects.exclude(id=old.id).get()


def test_erasing_a_tenant_deletes_its_rows_an_operators_too(world: World, as_operator: APIClient) -> None:
    send(as_operator, KEYS, new_key(world))
    send(as_operator, "/api/v1/tenants", {"slug": "initech", "name": "Initech"})
    registry.archive(SYSTEM, world.acme.tenant)
    erasure.erase(SYSTEM, Tenant.objects.get(slug="acme"))
    left = StoredResponse.objects.get()
    assert (left.tenant_id, left.sealed) == (None, None)
    again = send(as_operator, "/api/v1/tenants", {"slug": "initech", "name": "Initech"})
    assert error_of(again)["code"] == "idempotency_answer_not_kept"


def test_a_large_response_is_not_stored_and_its_change_is_not_made_again(
    world: World, as_acme: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_responses, "MOST_BYTES", 10)
    before = ApiKey.objects.count()
    assert send(as_acme, KEYS, new_key(world)).status_code == 201
    again = send(as_acme, KEYS, new_key(world))
    assert again.status_code == 409
    assert error_of(again)["code"] == "idempotency_answer_not_kept"
    assert ApiKey.objects.count() == before + 1


def test_a_principal_has_a_bounded_number_of_keys(
    world: World, as_acme: APIClient, as_operator: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_responses, "MOST_KEYS", 1)
    assert send(as_acme, KEYS, new_key(world)).status_code == 201
    refused = send(as_acme, KEYS, new_key(world), "deploy-2")
    assert refused.status_code == 429
    assert error_of(refused)["code"] == "idempotency_quota_exceeded"
    assert int(refused["retry-after"]) > 0
    assert send(as_acme, KEYS, new_key(world))["idempotent-replayed"] == "true"
    assert send(as_operator, KEYS, new_key(world)).status_code == 201


def test_a_change_that_fails_leaves_nothing_and_may_run_again(
    world: World, as_acme: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = KeysView.post

    def fails(view: KeysView, request: Any, tenant: str) -> Any:
        made(view, request, tenant)
        raise RuntimeError

    before = ApiKey.objects.count()
    monkeypatch.setattr(KeysView, "post", fails)
    with pytest.raises(RuntimeError):
        send(as_acme, KEYS, new_key(world))
    assert ApiKey.objects.count() == before
    assert not StoredResponse.objects.exists()
    monkeypatch.undo()
    assert send(as_acme, KEYS, new_key(world)).status_code == 201


def test_a_reservation_whose_process_died_is_taken_over(
    world: World, as_acme: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(row: StoredResponse, answer: object) -> None:
        raise RuntimeError

    def has_no_database(identity: UUID) -> None:
        raise OperationalError

    with monkeypatch.context() as patched:
        patched.setattr(stored_responses, "_store", dies)
        patched.setattr(stored_responses, "_drop", has_no_database)
        with pytest.raises(RuntimeError):
            send(as_acme, KEYS, new_key(world))
    assert StoredResponse.objects.get().status is None
    assert not ApiKey.objects.filter(name="ci").exists()
    assert send(as_acme, KEYS, new_key(world)).status_code == 201
    assert send(as_acme, KEYS, new_key(world))["idempotent-replayed"] == "true"


@pytest.mark.django_db(transaction=True)
def test_of_two_at_once_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = fixtures.build()
    made, is_running, may_end = KeysView.post, threading.Event(), threading.Event()

    def waits(view: KeysView, request: Any, tenant: str) -> Any:
        is_running.set()
        assert may_end.wait(10)
        return made(view, request, tenant)

    monkeypatch.setattr(KeysView, "post", waits)
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(send(bearer(world.acme.secret), KEYS, new_key(world)))
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert is_running.wait(10)
    second = send(bearer(world.acme.secret), KEYS, new_key(world))
    may_end.set()
    thread.join()
    assert second.status_code == 409
    assert error_of(second)["code"] == "idempotency_in_progress"
    assert second["retry-after"] == "1"
    assert answers[0].status_code == 201
    assert send(bearer(world.acme.secret), KEYS, new_key(world)).json() == answers[0].json()
    assert ApiKey.objects.filter(name="ci").count() == 1


def test_a_tenant_reads_no_row_through_the_database(world: World, as_acme: APIClient) -> None:
    send(as_acme, KEYS, new_key(world))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT has_table_privilege('hearth_tenant', 'idempotency_storedresponse', 'SELECT')")
        assert cursor.fetchone() == (False,)
