"""A tenant's stored responses in Redis: entries, an index of them, and a quota in bytes.

A tenant's keys, all on one cluster node:

- ``prediction:<name>``: an entry, sealed; it expires by itself.
- ``predictions:known``: a hash of name to bytes, key, request and model; the empty name has the total bytes.
- ``predictions:used`` and ``predictions:ends``: names by last use and by expiry.
- ``predictions:writes:<key>``: the state of an API key's limit of writes per minute.

Redis may evict any of them. An evicted entry counts until its expiry or until it is the least recently used. An evicted
index starts empty, and the entries that it listed expire.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import cast
from uuid import UUID

import msgspec
from redis import Redis

from tenants.ids import TenantId
from tenants.isolation import keyspace

#: Bytes of an entry in Redis besides its value: its key and its index entries.
OVERHEAD_BYTES = 512
#: Most entries evicted for one write; this blocks Redis for a few milliseconds.
MOST_EVICTED = 1000
#: First number that STORE returns.
STORED, TOO_MANY_WRITES, TOO_LARGE, NO_ROOM = 1, -1, -2, -3
_ROOM = "predictions"

_CONSTANTS = f"""
local OVERHEAD_BYTES, MOST_EVICTED = {OVERHEAD_BYTES}, {MOST_EVICTED}
local STORED, TOO_MANY_WRITES, TOO_LARGE, NO_ROOM = {STORED}, {TOO_MANY_WRITES}, {TOO_LARGE}, {NO_ROOM}
"""


def _lua(name: str) -> str:
    return (Path(__file__).parent / "lua" / f"{name}.lua").read_text()


STORE = _CONSTANTS + _lua("clock") + _lua("drop") + _lua("store")
USED = _lua("clock") + _lua("touch")
DROP = _lua("drop") + _lua("delete")


class CacheWrite(msgspec.Struct, frozen=True, kw_only=True):
    """An entry to store, and its limits. ``writes_per_minute`` None: unlimited."""

    tenant_id: TenantId
    name: bytes
    value: bytes
    ttl_seconds: int
    quota_bytes: int
    writes_per_minute: int | None
    key_id: UUID
    source_id: UUID
    model_name: str

    def arguments(self) -> tuple[str | bytes | int, ...]:
        """Return the arguments of STORE, beginning with the number of keys."""
        index, prefix, key, writes = _shared_arguments(self.tenant_id, self.key_id)
        name = self.name.hex()
        return (
            5,
            *index,
            prefix + name,
            writes,
            name,
            self.value,
            max(1, self.ttl_seconds) * 1000,
            self.quota_bytes,
            prefix,
            f"{key} {self.source_id.hex} {self.model_name}",
            "-" if self.writes_per_minute is None else self.writes_per_minute,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUsage:
    """What a tenant has stored in Redis, according to its index."""

    entries: int
    bytes: int


def entry_key(tenant_id: TenantId, name: bytes) -> str:
    """Return the Redis key of an entry."""
    return keyspace.tenant_key(tenant_id, "prediction", name.hex())


def used_key(tenant_id: TenantId) -> str:
    """Return the Redis key of the index by last use."""
    return _index(tenant_id)[1]


def usage_of(redis: Redis, tenant_id: TenantId) -> CacheUsage:
    """Return what a tenant has stored, including entries that expired since the last write."""
    known = _index(tenant_id)[0]
    total = cast(bytes | None, redis.hget(known, ""))
    return CacheUsage(entries=max(redis.hlen(known) - 1, 0), bytes=int(total or 0))


def delete(
    redis: Redis,
    tenant_id: TenantId,
    *,
    model_names: Collection[str] | None = None,
    key_id: UUID | None = None,
    request_id: UUID | None = None,
) -> int:
    """Delete a tenant's entries, or only those of models, a key or a request; return their number.

    Entries stored meanwhile stay, even under a name to be deleted.
    """
    known, used, ends = _index(tenant_id)
    found = [
        (name, about)
        for name, about in redis.hscan_iter(known, count=1000)
        if name and _is(about, model_names=model_names, key_id=key_id, request_id=request_id)
    ]
    prefix, dropped = entry_key(tenant_id, b""), 0
    for start in range(0, len(found), MOST_EVICTED):
        part = chain.from_iterable(found[start : start + MOST_EVICTED])
        dropped += cast(int, redis.eval(DROP, 3, known, used, ends, prefix, *part))
    return dropped


def _is(about: bytes, *, model_names: Collection[str] | None, key_id: UUID | None, request_id: UUID | None) -> bool:
    _, key, source, model = about.decode().split(" ", 3)
    return (
        (model_names is None or model in model_names)
        and (key_id is None or key == key_id.hex)
        and (request_id is None or source == request_id.hex)
    )


@lru_cache(maxsize=4096)
def _shared_arguments(tenant_id: TenantId, key_id: UUID) -> tuple[tuple[str, str, str], str, str, str]:
    """Return the arguments that all writes of an API key share: index keys, entry prefix, key, its write limit."""
    writes = keyspace.tenant_key(tenant_id, _ROOM, f"writes:{key_id.hex}")
    return _index(tenant_id), entry_key(tenant_id, b""), key_id.hex, writes


def _index(tenant_id: TenantId) -> tuple[str, str, str]:
    known, used, ends = (keyspace.tenant_key(tenant_id, _ROOM, part) for part in ("known", "used", "ends"))
    return known, used, ends
