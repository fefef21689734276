"""What a tenant's requests can do to a rollout."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import orjson
import pytest

from gateway.protocols import request_body
from gateway.protocols.endpoint_table import ENDPOINTS
from gateway.request import RequestContext, RequestTimeline
from gateway.upstream import rollout_outcomes
from gateway.upstream.connection import ConnectFailed, ReadTimeout, ResponseTooLarge
from gateway.upstream.rollout_outcomes import RolloutOutcomes
from tenants.ids import ReplicaId, RevisionId, new_id
from tests.gateway.fixtures import callers
from tests.gateway.fixtures.tenants import HELLO
from workers.serving.endpoints import Endpoint, Watch
from workers.serving.rollout_traffic import Traffic

CHAT = ENDPOINTS["/v1/chat/completions"]
FAILURE = ConnectFailed("refused")


def engine(watch: Watch | None) -> Endpoint:
    """Return an engine."""
    return Endpoint(
        replica_id=ReplicaId(new_id()),
        deployment="demo",
        model_name="demo",
        revision_id=RevisionId(UUID(int=1)),
        revision_digest="d",
        base_url="http://127.0.0.1:1",
        api_key="",
        generation=1,
        watch=watch,
    )


OLD, NEW, OTHER = engine(None), engine(Watch(slow_seconds=1.0)), engine(Watch())


def ask(tenant: int, *, stream: bool = True) -> RequestContext:
    """Return a request of a tenant."""
    timeline = RequestTimeline(
        request_id=new_id(), request_name="", client_request_id="", started_at_ns=0, started=0.0, endpoint=CHAT
    )
    call = request_body.parse(CHAT, orjson.dumps({**HELLO, "stream": stream}))
    caller = callers.caller(tenant=UUID(int=tenant))
    return RequestContext(caller=caller, call=call, model=cast(Any, None), timeline=timeline)


def seen(outcomes: RolloutOutcomes, endpoint: Endpoint = NEW) -> Traffic:
    """Return what is counted for an engine."""
    return outcomes.traffic().get(endpoint.replica_id, Traffic())


def test_an_engine_without_a_rollout_is_not_counted() -> None:
    outcomes = RolloutOutcomes()
    outcomes.count(ask(1), OLD, 9.0)
    outcomes.count(ask(1), OLD, 9.0, FAILURE)
    outcomes.broke(ask(1), OLD)
    assert outcomes.traffic() == {}


def test_a_tenant_alone_counts_in_full() -> None:
    outcomes = RolloutOutcomes()
    for _ in range(3):
        outcomes.count(ask(1), NEW, 0.1, FAILURE)
        outcomes.count(ask(1), NEW, 2.0)
        outcomes.count(ask(1, stream=False), NEW, 2.0)
    assert seen(outcomes) == Traffic(requests=9, failures=3, slow=3)


@pytest.mark.parametrize("others", [0, 1])
def test_one_tenant_cannot_undo_what_goes_well_for_the_others(others: int) -> None:
    outcomes = RolloutOutcomes()
    for _ in range(100):
        outcomes.count(ask(1), NEW, 0.1, ReadTimeout(1.0))
        outcomes.count(ask(1), NEW, 9.0)
        broken = ask(1)
        outcomes.count(broken, NEW, 0.1)
        outcomes.broke(broken, NEW)
    for tenant in (2, 3):
        for _ in range(50):
            outcomes.count(ask(tenant), NEW, 0.1)
    for _ in range(others):  # the others' share then is 1 % of 100, and so the tenant's is 3 of 300
        failed = ask(2)
        outcomes.count(failed, NEW, 9.0)
        outcomes.broke(failed, NEW)
    found = seen(outcomes)
    assert found.requests == 400 + others
    assert (found.failures, found.slow) == ((0, 0), (3, 3))[others]


def test_what_goes_wrong_for_all_counts_though_nearly_all_requests_are_of_one_tenant() -> None:
    outcomes = RolloutOutcomes()
    for tenant in [1] * 97 + [2] * 3:
        outcomes.count(ask(tenant), NEW, 2.0)
    assert seen(outcomes) == Traffic(requests=100, slow=100)


def test_a_failure_counts_for_any_tenant_once_another_engine_has_answered() -> None:
    outcomes = RolloutOutcomes()
    for _ in range(50):
        outcomes.count(ask(2), NEW, 0.1)
    for elsewhere in (OLD, OTHER):
        request = ask(1)
        outcomes.count(request, NEW, 0.1, FAILURE)
        outcomes.count(request, elsewhere, 0.1)
    assert seen(outcomes) == Traffic(requests=52, failures=2)
    assert seen(outcomes, OTHER) == Traffic(requests=1)


@pytest.mark.parametrize("order", [(OLD, NEW), (NEW, OLD), (NEW, OTHER, OLD)])
def test_a_request_that_the_earlier_revision_fails_too_is_no_failure(order: tuple[Endpoint, ...]) -> None:
    outcomes, request = RolloutOutcomes(), ask(1)
    for endpoint in order:
        outcomes.count(request, endpoint, 0.1, FAILURE)
    assert seen(outcomes) == Traffic(requests=1)


def test_a_request_counts_as_failed_once_however_often_it_is_tried() -> None:
    outcomes, request = RolloutOutcomes(), ask(1)
    for endpoint in (NEW, OTHER, NEW, NEW):
        outcomes.count(request, endpoint, 0.1, FAILURE)
    assert (seen(outcomes), seen(outcomes, OTHER)) == (Traffic(requests=3, failures=1), Traffic(requests=1))


def test_a_response_that_is_too_large_is_no_failure() -> None:
    outcomes = RolloutOutcomes()
    outcomes.count(ask(1), NEW, 0.1, ResponseTooLarge(1))
    assert seen(outcomes) == Traffic(requests=1)


def test_a_client_that_leaves_after_the_bound_had_a_slow_stream() -> None:
    outcomes = RolloutOutcomes()
    for seconds in (0.9, 1.1):
        outcomes.count(ask(1), NEW, seconds, TimeoutError())
    assert seen(outcomes) == Traffic(requests=2, slow=1)


def test_tenants_and_replicas_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_outcomes, "MAX_TENANTS", 2)
    monkeypatch.setattr(rollout_outcomes, "MAX_REPLICAS", 1)
    outcomes, request = RolloutOutcomes(), ask(1)
    for tenant in range(5):
        outcomes.count(ask(tenant), NEW, 2.0)
    assert seen(outcomes) == Traffic(requests=5, slow=5)
    outcomes.count(request, NEW, 0.1, FAILURE)
    outcomes.count(ask(1), OTHER, 2.0)
    outcomes.count(request, OLD, 0.1)
    assert outcomes.traffic() == {OTHER.replica_id: Traffic(requests=1)}
