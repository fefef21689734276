"""Keys that are revoked and rotated by API while a real engine writes for them."""

from __future__ import annotations

import openai
import pytest

from tests.journey.customers import Customer, customer
from tests.journey.instance import Instance, Reply, wait_for

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]

#: More than an engine writes before the test has done what it does.
STREAM_TOKENS = 6000


@pytest.fixture(name="caller")
def _caller(instance: Instance) -> Customer:
    found = customer(instance, "caller")
    wait_for(lambda: found.ask().status == 200, "a key that every gateway knows")
    return found


def running(instance: Instance) -> float:
    """Return how many requests the engines work on."""
    return sum(engine.counter("vllm:num_requests_running") for engine in instance.engines())


def test_a_revoked_key_ends_its_stream_and_the_engines_work(caller: Customer) -> None:
    stream = caller.stream(STREAM_TOKENS)
    next(stream)
    revoked = caller.instance.operator(caller.path(f"/keys/{caller.key_id}"), method="DELETE")
    assert revoked.status in {200, 204}
    with pytest.raises(openai.APIError) as ended:
        for _ in stream:
            pass
    assert ended.value.code == "key_revoked"
    wait_for(lambda: running(caller.instance) == 0, "idle engines", seconds=30)
    refused = caller.ask()
    assert (refused.status, refused.json()["error"]["code"]) == (401, "key_revoked")


def test_a_key_is_rotated_under_a_stream_that_goes_on(caller: Customer) -> None:
    stream = caller.stream(400)
    next(stream)
    rotated = caller.instance.operator(caller.path(f"/keys/{caller.key_id}/rotate"), {"overlap_seconds": 3600})
    assert rotated.status == 201, rotated
    successor = rotated.json()["secret"]
    assert [chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-1] == "length"
    wait_for(lambda: caller.ask(successor).status == 200, "the successor")
    assert caller.ask().status == 200, "the old key works until the overlap is over"


def test_without_an_overlap_the_old_key_opens_nothing_more(caller: Customer) -> None:
    stream = caller.stream(400)
    next(stream)
    rotated = caller.instance.operator(caller.path(f"/keys/{caller.key_id}/rotate"), {"overlap_seconds": 0})
    successor = rotated.json()["secret"]
    assert [chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-1] == "length"

    def refusal() -> Reply | None:
        answer = caller.ask()
        return answer if answer.status == 401 else None

    assert wait_for(refusal, "a refusal").json()["error"]["code"] == "key_expired"
    assert caller.ask(successor).status == 200
