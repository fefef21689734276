"""The list of decisions is bounded, newest first, and no request waits for it."""

from __future__ import annotations

from typing import cast
from uuid import UUID

import msgspec
import pytest

from gateway.redis_client.client import RedisClient
from gateway.upstream.routing import decision_log
from gateway.upstream.routing.decision_log import KEPT_SECONDS, DecisionLog
from routing import decision_record
from routing.decision_record import KEY
from routing.explanation import Decision
from tests.gateway.fixtures.private_redis import PrivateRedis
from tests.gateway.fixtures.tenants import until
from tests.routing.test_explanation import ONE, candidate, decided


def numbered(number: int) -> Decision:
    """Return the decision for a request with this number."""
    return msgspec.structs.replace(decided(candidate(ONE)), request_id=UUID(int=number))


async def kept(server: PrivateRedis) -> list[int]:
    """Return the numbers of the requests whose decisions are kept, newest first."""
    items = cast("list[bytes]", await server.client.lrange(KEY.decode(), 0, -1))
    return [number for each in items for number in range(1, 20) if decision_record.of_request([each], UUID(int=number))]


async def test_the_last_decisions_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "MAX_DECISIONS", 4)
    monkeypatch.setattr(decision_log, "MAX_WAITING", 3)
    monkeypatch.setattr(decision_log, "SEND_SECONDS", 2.0)
    async with PrivateRedis() as server:
        redis = RedisClient(server.url, timeout_seconds=2)
        log = DecisionLog(redis)
        for number in (1, 2, 3, 4):
            log.add(numbered(number))
        assert await kept(server) == []
        await until(lambda: log._timer is None)
        await redis.execute("PING")
        assert await kept(server) == [4, 3, 2]  # of more than three the last ones
        assert KEPT_SECONDS - 60 < await server.client.ttl(KEY.decode()) <= KEPT_SECONDS
        for number in (5, 6):
            log.add(numbered(number))
        log.send()
        await redis.execute("PING")
        assert await kept(server) == [6, 5, 4, 3]
        server.pause()
        log.add(numbered(7))
        log.send()  # returns, and the decision is lost
        await until(lambda: redis.failing)
        server.resume()
        await redis.close()
