"""Threads share one Redis client, also when they ask first at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from django.conf import settings

from portal import redis_clients


def test_threads_that_ask_first_at_once_get_one_client() -> None:
    for number in range(20):
        barrier = Barrier(16)

        def ask(_: int, timeout: float = 1 + number / 100, start: Barrier = barrier) -> int:
            start.wait()
            return id(redis_clients.client(settings.REDIS_LIMITS_URL, timeout))

        with ThreadPoolExecutor(16) as pool:
            assert len(set(pool.map(ask, range(16)))) == 1
