"""The account of bodies: each tenant has its share, and what is taken is given back."""

from __future__ import annotations

import dataclasses

import pytest

from gateway.bodies.memory import TENANT_FLOOR_BYTES, BodyMemory, BodyShare
from gateway.errors import GatewayError
from tenants.ids import TenantId, new_id
from tenants.snapshot.snapshot import Caller
from tests.gateway.fixtures.callers import caller

MIB = 1 << 20


def tenant(queue_bytes: int = 0) -> Caller:
    one = caller()
    policy = dataclasses.replace(one.policy, queue_bytes=queue_bytes)
    return dataclasses.replace(one, tenant_id=TenantId(new_id()), policy=policy)


def held(memory: BodyMemory, who: Caller, size_bytes: int) -> BodyShare:
    share = BodyShare()
    share.hold(memory, who, size_bytes)
    return share


def refusal(memory: BodyMemory, who: Caller, size_bytes: int) -> tuple[int, str]:
    """Return status and code of the error, which takes nothing."""
    before = memory.used_bytes
    with pytest.raises(GatewayError) as refused:
        held(memory, who, size_bytes)
    assert memory.used_bytes == before
    return refused.value.status, refused.value.code


def test_one_tenant_takes_a_quarter_at_most() -> None:
    memory, hostile = BodyMemory(8 * MIB), tenant()
    first = held(memory, hostile, 2 * MIB)
    assert refusal(memory, hostile, 1) == (429, "too_many_body_bytes")
    held(memory, tenant(), 2 * MIB)
    first.release()
    first.release()
    assert (memory.used_by(hostile.tenant_id), memory.used_bytes) == (0, 2 * MIB)
    held(memory, hostile, 2 * MIB)


def test_a_tenant_whose_queue_may_be_larger_may_fill_it() -> None:
    memory, who = BodyMemory(8 * MIB), tenant(queue_bytes=3 * MIB)
    held(memory, who, 3 * MIB)
    assert refusal(memory, who, 1) == (429, "too_many_body_bytes")


def test_all_tenants_together_take_no_more_than_the_process_has() -> None:
    memory = BodyMemory(8 * MIB)
    shares = [held(memory, tenant(), 2 * MIB) for _ in range(4)]
    assert refusal(memory, tenant(), TENANT_FLOOR_BYTES + 1) == (503, "gateway_busy")
    held(memory, tenant(), TENANT_FLOOR_BYTES).release()  # a small one is let in: four tenants lock nobody out
    shares[0].release()
    held(memory, tenant(), 2 * MIB)


def test_a_body_longer_than_announced_counts_as_it_grows() -> None:
    memory, who = BodyMemory(8 * MIB), tenant()
    share = held(memory, who, 100)
    share.grow(50)
    assert memory.used_by(who.tenant_id) == 100
    share.grow(2 * MIB)
    with pytest.raises(GatewayError):
        share.grow(2 * MIB + 1)
    assert memory.used_by(who.tenant_id) == 2 * MIB
    share.release()
    assert memory.used_bytes == 0
