"""What was refused, or failed, before an engine ran it is on record, and a flood of it stays small."""

from __future__ import annotations

from typing import Any

import pytest

from billing.drain.drain import Drain
from billing.models import UsageRecord
from billing.wal.records import Start
from gateway.metering import refusals
from tenants.keys import keys
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.scripted_app import CHUNKS, events, saying, streaming
from tests.gateway.fixtures.tenants import HELLO, STREAMED, Gateway, in_database, until
from tests.gateway.metering.test_meter import full_disk
from tests.tenants.customers import OPERATOR

UNKNOWN = {**HELLO, "model": "nobody"}


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        (b"{", 400, "invalid_json", "JSON"),
        ({**HELLO, "temperature": "hot"}, 400, "invalid_type", "temperature"),
        (UNKNOWN, 404, "model_not_found", "'nobody'"),
    ],
    ids=["body", "field", "model"],
)
async def test_a_refused_request_is_on_record_with_its_error(
    gateway: Gateway, body: Any, status: int, code: str, says: str
) -> None:
    got = await gateway.ask(body, headers={"x-request-id": "theirs"})
    assert (got.status, got.error["code"]) == (status, code)
    (end,) = gateway.refusals()
    assert (end.state, end.http_status, end.error_code, end.refusals) == ("refused", status, code, 1)
    assert end.error_message == got.error["message"][:300]
    assert says in end.error_message
    assert str(end.request_id) == got.answer_headers["x-request-id"]
    (start,) = (each for each in gateway.records() if isinstance(each, Start))
    assert (start.request_id, start.client_request_id) == (end.request_id, "theirs")
    assert start.tenant_id == gateway.world.acme.tenant.id


async def test_a_request_without_a_valid_key_is_nobodys(gateway: Gateway) -> None:
    assert (await gateway.ask(UNKNOWN, key="hk_wrong")).status == 401
    assert gateway.records() == []


async def test_a_key_without_the_scope_is_refused_on_record(gateway: Gateway) -> None:
    issued = await in_database(
        lambda: keys.issue(OPERATOR, gateway.world.acme.project, name="reader", scopes=["management:read"])
    )
    await until(lambda: issued.key.public_id in gateway.runtime.feed.snapshot.callers.keys)
    assert (await gateway.ask(key=issued.secret)).status == 403
    assert [end.error_code for end in gateway.refusals()] == ["scope_missing"]


@pytest.mark.usefixtures("emptied")
async def test_a_flood_is_counted_exactly_in_few_records_that_cost_nothing(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "ROWS", 3)
    monkeypatch.setattr(refusals, "GROUPS", 1)
    for _ in range(7):
        await gateway.ask(UNKNOWN)
    for _ in range(2):
        await gateway.ask(b"{")
    await gateway.ask(UNKNOWN, key=gateway.world.globex.secret)
    assert len(gateway.refusals()) == 4
    gateway.runtime.components.refusals.close()
    found = [(end.error_code, end.refusals) for end in gateway.refusals()]
    assert found == [("model_not_found", 1)] * 4 + [("model_not_found", 4), ("several", 2)]

    def stored() -> list[tuple[int | None, int]]:
        drain = Drain(gateway.wal, "here")
        try:
            while drain.step():
                pass
        finally:
            drain.close()
        mine = UsageRecord.objects.filter(tenant_id=gateway.world.acme.tenant.id)
        return list(mine.order_by("id").values_list("amount_pico", "refusals"))

    assert await in_database(stored) == [(0, 1), (0, 1), (0, 1), (0, 4), (0, 2)]


async def test_what_a_full_log_did_not_take_is_recorded_when_it_has_room(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "WINDOW_SECONDS", 0.05)
    with full_disk(gateway):
        for _ in range(2):
            assert (await gateway.ask(UNKNOWN)).status == 404
        assert gateway.records() == []
    await until(lambda: sum(end.refusals for end in gateway.refusals()) == 2)


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
async def test_a_request_that_finds_no_replica_is_on_record_once(gateway: Gateway, body: dict[str, Any]) -> None:
    await in_database(tenants.stop_replicas)
    await until(lambda: not gateway.runtime.feed.snapshot.endpoints)
    await gateway.set_policy(queue_seconds=1)
    gateway.send_comments_every(0.1)
    assert b"no_replica_ready" in (await gateway.ask(body)).body
    found = [(end.state, end.http_status, end.error_code) for end in (*gateway.refusals(), *gateway.ends())]
    assert found == [("engine_error", 503, "no_replica_ready")]


async def test_a_request_that_an_engine_refused_or_failed_has_the_error_in_its_record(gateway: Gateway) -> None:
    gateway.let_all_say(saying({"error": {"message": "too hot"}}, status=400))
    assert (await gateway.ask({**HELLO, "seed": 1})).status == 400
    gateway.let_all_say(streaming(events(CHUNKS[:2], done=False), cut=True))
    assert b"engine_failed_mid_stream" in (await gateway.ask({**STREAMED, "seed": 2})).body
    found = [(end.state, end.error_code, end.error_message) for end in gateway.ends()]
    assert found[0] == ("refused", "invalid_request", "too hot")
    assert found[1][:2] == ("engine_error", "engine_failed_mid_stream")
    assert gateway.refusals() == []
