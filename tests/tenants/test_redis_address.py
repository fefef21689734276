"""The URL of a Redis, in the forms that redis-py and kombu expect."""

from __future__ import annotations

from typing import Any

import pytest

from tenants import redis_address

SENTINELS = "redis+sentinel://hearth:p%40ss@a:1,[::1],c/main/3?sentinel_password=s%23t"


@pytest.mark.parametrize(
    ("url", "celery"),
    [
        ("redis://h:6379/2", "redis://h:6379/2"),
        ("rediss://h/0", "rediss://h/0"),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock?virtual_host=3"),
        ("unix://u:p@/run/redis.sock", "redis+socket://u:p@/run/redis.sock?virtual_host=0"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0"),
    ],
)
def test_a_redis_url_is_spelled_for_kombu(url: str, celery: str) -> None:
    assert redis_address.kombu(url) == (celery, {})


def test_sentinels_are_read_from_the_url() -> None:
    found = redis_address.parse(SENTINELS)
    assert found.servers == (("a", 1), ("::1", 26379), ("c", 26379))
    assert (found.primary, found.database, found.tls) == ("main", 3, False)
    assert (found.username, found.password) == ("hearth", "p@ss")
    assert (found.sentinel_username, found.sentinel_password) == ("", "s#t")


def test_sentinels_are_spelled_for_kombu() -> None:
    url, options = redis_address.kombu(SENTINELS)
    assert url.split(";") == [f"sentinel://hearth:p%40ss@{host}/3" for host in ("a:1", "[::1]:26379", "c:26379")]
    assert options["master_name"] == "main"
    assert options["sentinel_kwargs"]["password"] == "s#t"
    assert redis_address.kombu_tls(SENTINELS) is None


def test_tls_holds_for_the_primary_and_its_sentinels() -> None:
    url = "rediss+sentinel://:p@a/main?ssl_ca_certs=/ca.pem"
    expected: dict[str, Any] = {"ssl_cert_reqs": "required", "ssl_ca_certs": "/ca.pem"}
    assert redis_address.kombu_tls(url) == expected
    _, options = redis_address.kombu(url)
    assert (options["sentinel_kwargs"]["ssl"], options["sentinel_kwargs"]["ssl_ca_certs"]) == (True, "/ca.pem")
