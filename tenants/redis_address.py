"""Read REDIS_URL and its kin: one server, or a primary that Sentinels name; and open redis-py's clients for it.

A primary behind Sentinels is ``redis+sentinel://user:password@host:26379,host:26379/name/0``: the form of the packages
``limits`` and ``redis-sentinel-url``, because redis-py has none and kombu's repeats the scheme for each host and leaves
out the name. ``rediss+sentinel://`` uses TLS for both. The options of ``rediss://`` hold here as well, and
``sentinel_username`` and ``sentinel_password`` log in to the Sentinels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import redis.asyncio as aioredis
import redis.asyncio.sentinel as async_sentinel
from redis import Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

PLAIN = ("redis://", "rediss://", "unix://")
SENTINEL = ("redis+sentinel://", "rediss+sentinel://")
DEFAULT_PORT, DEFAULT_SENTINEL_PORT = 6379, 26379
ALLOWED = (
    "a redis://, rediss:// or unix:// URL, or redis+sentinel://:password@host:26379,host:26379/name/0 for a primary "
    "that Sentinels name; percent-encode what is special in a password"
)
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
#: For one Sentinel to connect or to answer; then the next one is asked.
SENTINEL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """One Redis. ``options`` are keyword arguments of redis-py's connections, without those of the place."""

    #: A unix socket, else empty.
    path: str
    #: Where it listens on the network, or where its Sentinels do.
    servers: tuple[tuple[str, int], ...]
    #: The name by which Sentinels know the primary; empty without Sentinels.
    primary: str
    tls: bool
    username: str
    password: str
    database: int
    sentinel_username: str
    sentinel_password: str
    options: Mapping[str, Any]


def parse(url: str) -> RedisAddress:
    """Return what a URL says. Raises ValueError with what is allowed; it repeats no password."""
    try:
        if url.startswith(SENTINEL):
            return _behind_sentinels(url)
        if url.startswith(PLAIN):
            return _plain(url)
    except (ValueError, TypeError):
        pass
    raise ValueError(ALLOWED)


def _plain(url: str) -> RedisAddress:
    found: dict[str, Any] = dict(parse_url(url))
    path = found.pop("path", "")
    host, port = found.pop("host", "localhost"), found.pop("port", DEFAULT_PORT)
    return _address(found, path=path, servers=() if path else ((host, port),), tls=url.startswith("rediss:"))


def _behind_sentinels(url: str) -> RedisAddress:
    """Read the parts that redis-py does not know, and let it read the rest. Raises ValueError."""
    parts = urlsplit(url)
    scheme = parts.scheme.removesuffix("+sentinel")
    login, at, hosts = parts.netloc.rpartition("@")
    name, _, database = parts.path.removeprefix("/").partition("/")
    if not name or not (database or "0").isdecimal():
        raise ValueError(ALLOWED)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    own = {key: value for key, value in pairs if key in _SENTINEL_OPTIONS}
    others = urlencode([(key, value) for key, value in pairs if key not in _SENTINEL_OPTIONS])
    found: dict[str, Any] = dict(parse_url(f"{scheme}://{login}{at}sentinels/{database or 0}?{others}"))
    del found["host"]
    servers = tuple(_host_and_port(each) for each in hosts.split(","))
    return _address(found, servers=servers, primary=unquote(name), tls=scheme == "rediss", **own)


def _address(found: dict[str, Any], *, servers: tuple[tuple[str, int], ...], tls: bool, **own: str) -> RedisAddress:
    found.pop("connection_class", None)
    return RedisAddress(
        path=own.get("path", ""),
        servers=servers,
        primary=own.get("primary", ""),
        tls=tls,
        username=found.pop("username", None) or "",
        password=found.pop("password", None) or "",
        database=found.pop("db", 0),
        sentinel_username=own.get("sentinel_username", ""),
        sentinel_password=own.get("sentinel_password", ""),
        options=found,
    )


def _host_and_port(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(ALLOWED)
    return parts.hostname, parts.port or DEFAULT_SENTINEL_PORT


def client(url: str, **options: Any) -> Redis:
    """Return a client of the Redis, with further keyword arguments of redis-py. Raises ValueError.

    Behind Sentinels each new connection leads to the primary, and one to a server that is no longer that is closed.
    """
    address = parse(url)
    if not address.primary:
        return Redis.from_url(url, **options)
    to_sentinels = _to_sentinels(address, Retry(NoBackoff(), 0))
    sentinels = Sentinel(address.servers, sentinel_kwargs=to_sentinels)  # type: ignore[no-untyped-call]
    primary = sentinels.master_for(address.primary, **(_to_primary(address) | options))  # type: ignore[no-untyped-call]
    return cast(Redis, primary)


def async_client(url: str, **options: Any) -> aioredis.Redis:
    """Return a client as :func:`client` does, for the running loop."""
    address = parse(url)
    if not address.primary:
        return aioredis.Redis.from_url(url, **options)
    found = async_sentinels(address).master_for(address.primary, **(_to_primary(address) | options))
    return cast(aioredis.Redis, found)


def async_sentinels(address: RedisAddress) -> async_sentinel.Sentinel:
    """Return the client of the Sentinels that know the primary."""
    to_sentinels = _to_sentinels(address, AsyncRetry(NoBackoff(), 0))
    return async_sentinel.Sentinel(address.servers, sentinel_kwargs=to_sentinels)  # type: ignore[no-untyped-call]


def kombu(url: str) -> tuple[str, dict[str, Any]]:
    """Return the URL as kombu writes it, and the transport options that belong to it."""
    address = parse(url)
    login = f"{quote(address.username, safe='')}:{quote(address.password, safe='')}@" if address.password else ""
    if address.path:
        return f"redis+socket://{login}{address.path}?virtual_host={address.database}", {}
    if not address.primary:
        return url, {}
    hosts = (f"[{host}]" if ":" in host else host for host, _ in address.servers)
    urls = [
        f"sentinel://{login}{host}:{port}/{address.database}"
        for host, (_, port) in zip(hosts, address.servers, strict=True)
    ]
    return ";".join(urls), {"master_name": address.primary, "sentinel_kwargs": _to_sentinels(address, None)}


def kombu_tls(url: str) -> dict[str, Any] | None:
    """Return what kombu needs to speak TLS to a primary and its Sentinels; None where the URL says it all."""
    address = parse(url)
    if not (address.primary and address.tls):
        return None
    return {"ssl_cert_reqs": "required", **{key: each for key, each in address.options.items() if key[:4] == "ssl_"}}


def channel_layer(url: str) -> dict[str, Any]:
    """Return the Redis as channels_redis takes one of its ``hosts``."""
    address = parse(url)
    if not address.primary:
        return {"address": url}
    sentinels = {"sentinels": list(address.servers), "sentinel_kwargs": _to_sentinels(address, None)}
    return {"master_name": address.primary, **sentinels, **_to_primary(address)}


def _to_primary(address: RedisAddress) -> dict[str, Any]:
    login = {"username": address.username or None, "password": address.password or None}
    return {**address.options, **login, "db": address.database, "ssl": address.tls}


def _to_sentinels(address: RedisAddress, retry: Retry | AsyncRetry | None) -> dict[str, Any]:
    return {
        **{key: value for key, value in address.options.items() if key.startswith("ssl_")},
        "username": address.sentinel_username or None,
        "password": address.sentinel_password or None,
        "ssl": address.tls,
        "socket_timeout": SENTINEL_SECONDS,
        "socket_connect_timeout": SENTINEL_SECONDS,
        **({} if retry is None else {"retry": retry}),
    }
