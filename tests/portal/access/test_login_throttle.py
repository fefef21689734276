"""Guesses at passwords: counted before they are checked, by client, in this and every other process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore

import pytest
from django.conf import settings
from django.db import OperationalError
from redis import Redis

from portal.access.requests import login_throttle
from portal.errors import TooManyAttempts


class Wrong(Exception):
    """The password is wrong."""


def guess(name: str, address: str = "192.0.2.7") -> bool:
    """Return whether a wrong password is checked at all."""
    try:
        with login_throttle.attempt(name, address):
            raise Wrong
    except Wrong:
        return True
    except TooManyAttempts:
        return False


def test_of_many_guesses_at_once_no_more_are_checked_than_of_as_many_in_turn() -> None:
    with ThreadPoolExecutor(16) as pool:
        checked = list(pool.map(guess, ["ada"] * 40))
    assert sum(checked) == login_throttle.MAX_PER_NAME_AND_CLIENT


def test_another_address_of_the_same_ipv6_network_is_the_same_client() -> None:
    checked = [guess("ada", f"2001:db8::{number:x}") for number in range(12)]
    assert sum(checked) == login_throttle.MAX_PER_NAME_AND_CLIENT
    assert guess("ada", "2001:db8:0:1::1")


def test_a_right_password_gives_its_attempt_back() -> None:
    for _ in range(3 * login_throttle.MAX_PER_CLIENT):
        with login_throttle.attempt("ada", "192.0.2.7"):
            pass
    assert guess("ada")
    redis = Redis.from_url(settings.REDIS_LIMITS_URL)
    assert [redis.ttl(key) > 0 for key in redis.scan_iter("hearth:guess:*")] == [True, True]
    redis.close()


def test_an_attempt_that_could_not_be_checked_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(login_throttle.MAX_PER_NAME_AND_CLIENT + 1):
        with pytest.raises(OperationalError), login_throttle.attempt("ada", "192.0.2.7"):
            raise OperationalError
    monkeypatch.setattr(login_throttle, "_hashes", BoundedSemaphore(1))
    monkeypatch.setattr(login_throttle, "HASH_WAIT_SECONDS", 0.01)
    with login_throttle.attempt("ada", "192.0.2.7"):
        assert not any(guess("bob") for _ in range(login_throttle.MAX_PER_NAME_AND_CLIENT + 1))
    assert guess("ada")
    assert guess("bob")


def test_one_client_guesses_a_limited_number_of_times_whatever_the_names() -> None:
    checked = [guess(f"name{number}") for number in range(login_throttle.MAX_PER_CLIENT + 5)]
    assert sum(checked) == login_throttle.MAX_PER_CLIENT


def test_without_redis_a_guess_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Redis.from_url("unix:///nonexistent/redis.sock")
    monkeypatch.setattr(login_throttle, "_redis", lambda: away)
    assert all(guess("ada") for _ in range(login_throttle.MAX_PER_NAME_AND_CLIENT + 5))
