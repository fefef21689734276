"""Addresses of servers, in the forms that each library expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hearth import environment, service_urls
from hearth.paths import sockets_dir
from hearth.service_urls import DATABASE_TIMEOUTS


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p%40ss@db.example:5433/shop", ("u", "p@ss", "db.example", "5433", "shop")),
        ("postgres://u@localhost/", ("u", "", "localhost", "", "hearth")),
        ("postgresql://u:p@/hearth?host=/run/postgresql", ("u", "p", "/run/postgresql", "", "hearth")),
    ],
)
def test_a_database_url_is_taken_apart(url: str, expected: tuple[str, ...]) -> None:
    found = service_urls.django_database(url)
    assert tuple(found[name] for name in ("USER", "PASSWORD", "HOST", "PORT", "NAME")) == expected
    assert found["OPTIONS"] == DATABASE_TIMEOUTS


def test_what_the_url_says_of_the_connection_wins() -> None:
    found: dict[str, Any] = service_urls.django_database("postgresql://u@h/d?sslmode=require&connect_timeout=60")
    assert found["OPTIONS"] == {**DATABASE_TIMEOUTS, "sslmode": "require", "connect_timeout": "60"}


@pytest.mark.parametrize("url", ["mysql://u@h/d", "sqlite:///x", "h/d"])
def test_another_database_is_refused_by_the_name_of_the_variable(url: str) -> None:
    with pytest.raises(environment.BadSetting) as refused:
        service_urls.django_database(url)
    assert refused.value.name == "DATABASE_URL"


def test_without_an_address_commands_that_need_no_database_still_run() -> None:
    assert service_urls.django_database("")["ENGINE"] == "django.db.backends.postgresql"


@pytest.mark.parametrize(
    ("url", "celery"),
    [
        ("redis://h:6379/2", "redis://h:6379/2"),
        ("rediss://h/0", "rediss://h/0"),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock?virtual_host=3"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0"),
    ],
)
def test_a_redis_url_is_spelled_for_celery(url: str, celery: str) -> None:
    assert service_urls.celery_url(url) == celery


def test_a_redis_role_without_its_own_url_takes_the_common_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://common/0")
    monkeypatch.delenv("REDIS_CACHE_URL", raising=False)
    assert _cache_url() == "redis://common/0"
    monkeypatch.setenv("REDIS_CACHE_URL", "redis://own/1")
    assert _cache_url() == "redis://own/1"


def test_without_an_address_redis_is_the_embedded_one_of_the_data_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("REDIS_URL", "REDIS_CACHE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEARTH_DATA_DIR", str(tmp_path))
    socket = sockets_dir(tmp_path) / "redis.sock"
    assert _cache_url() == f"unix://{socket}?db=0"
    assert service_urls.celery_url(_cache_url()) == f"redis+socket://{socket}?virtual_host=0"


def _cache_url() -> str:
    found = environment.read()
    return service_urls.redis_url(found, found.redis_cache_url)
