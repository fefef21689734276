"""Addresses of servers, in the forms that each library expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hearth import environment, service_urls
from hearth.paths import sockets_dir
from hearth.service_urls import DATABASE_TIMEOUTS
from tenants import redis_address


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


@pytest.mark.parametrize(
    ("name", "url", "allowed"),
    [
        ("DATABASE_URL", "mysql://u@h/d", "a postgresql:// URL"),
        ("DATABASE_URL", "h/d", "a postgresql:// URL"),
        ("DATABASE_URL", "postgresql://u@h:port/d", "ports from 1 to 65535"),
        ("DATABASE_URL", "postgresql://u@h/d?timeout=1", 'invalid URI query parameter: "timeout"'),
        ("DATABASE_URL", "postgresql://u:s%zzecret@h/d", "percent-encode"),
        ("DATABASE_OWNER_URL", "postgresql://u:secret@a,b/d", "target_session_attrs=read-write or primary"),
        ("DATABASE_URL", "postgresql://u:secret@a/d?target_session_attrs=standby", "target_session_attrs=read-write"),
        ("DATABASE_URL", "postgresql://u@/d?host=a,b,c&port=1,2&target_session_attrs=primary", "one port for each"),
        ("REDIS_URL", "http://:secret@h/0", "a redis://"),
        ("REDIS_URL", "redis://:secret@h:port/0", "a redis://"),
        ("REDIS_BROKER_URL", "redis+sentinel://:secret@a,b/", "redis+sentinel://:password@host:26379"),
        ("REDIS_LIMITS_URL", "redis+sentinel://:secret@a,b/name/zero", "redis+sentinel://"),
        ("REDIS_CACHE_URL", "redis+sentinel://:secret@a:port/name", "redis+sentinel://"),
    ],
)
def test_a_bad_url_stops_the_start_by_the_name_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, url: str, allowed: str
) -> None:
    monkeypatch.setenv(name, url)
    with pytest.raises(environment.BadSetting) as refused:
        environment.read()
    assert refused.value.name == name
    assert allowed in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "s%zz" not in str(refused.value)


def test_several_servers_are_passed_to_libpq() -> None:
    found = service_urls.django_database("postgresql://u:p@a:5432,b:5433/d?target_session_attrs=read-write")
    assert (found["HOST"], found["PORT"]) == ("a,b", "5432,5433")
    assert found["OPTIONS"] == {**DATABASE_TIMEOUTS, "target_session_attrs": "read-write"}


def test_without_an_address_commands_that_need_no_database_still_run() -> None:
    assert service_urls.django_database("")["HOST"] == "/nonexistent"


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
    assert redis_address.kombu(_cache_url()) == (f"redis+socket://{socket}?virtual_host=0", {})


def _cache_url() -> str:
    found = environment.read()
    return service_urls.redis_url(found, found.redis_cache_url)


@pytest.mark.parametrize(
    ("tls_proxy", "portal_url", "expected"),
    [
        ("0", "", ("http://llm.example:9001", "http://127.0.0.1:9001")),
        ("1", "", ("https://llm.example", "https://127.0.0.1")),
        ("1", "https://portal.example", ("https://portal.example",)),
    ],
)
def test_the_portals_origins_are_as_set_or_its_host_names_behind_its_port_or_its_proxy(
    monkeypatch: pytest.MonkeyPatch, tls_proxy: str, portal_url: str, expected: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HEARTH_PORTAL_URL", portal_url)
    monkeypatch.setenv("HEARTH_ALLOWED_HOSTS", "llm.example,127.0.0.1,*,.example.com")
    monkeypatch.setenv("HEARTH_PORT", "9000")
    monkeypatch.setenv("HEARTH_TLS_PROXY", tls_proxy)
    assert service_urls.portal_origins(environment.read()) == expected
