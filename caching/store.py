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

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import cast
from uuid import UUID

import msgspec
from redis import Redis

from tenants import keyspace
from tenants.ids import TenantId

#: Bytes of an entry in Redis besides its value: its key and its index entries.
OVERHEAD_BYTES = 512
#: Most entries evicted for one write; this blocks Redis for a few milliseconds.
MOST_EVICTED = 1000
#: First number that STORE returns.
STORED, TOO_MANY_WRITES, TOO_LARGE, NO_ROOM = 1, -1, -2, -3
_ROOM = "predictions"

_DROP = """
local total = tonumber(redis.call('HGET', KEYS[1], '') or '0')
local function drop(name, prefix)
    local about = redis.call('HGET', KEYS[1], name)
    if about then
        total = math.max(total - tonumber(string.match(about, '^%d+')), 0)
        redis.call('HDEL', KEYS[1], name)
    end
    redis.call('ZREM', KEYS[2], name)
    redis.call('ZREM', KEYS[3], name)
    return redis.call('UNLINK', prefix .. name)
end
"""

#: KEYS: known, used, ends, the entry, writes. ARGV: the name; the entry; milliseconds that it lives; bytes that the
#: tenant may keep; what keys of entries begin with; key, request and model, by blanks; writes a minute, ``-`` where
#: unlimited. Returns the outcome and how many entries were evicted. A refusal changes no entry of the same name.
STORE = (
    """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""
    + _DROP
    + f"""
local size, quota, ttl = #ARGV[2] + {OVERHEAD_BYTES}, tonumber(ARGV[4]), tonumber(ARGV[3])
local rate, owed = tonumber(ARGV[7]), 0
if rate then -- a write is 60000 units, and each millisecond pays off as many as there are writes a minute
    local packed = redis.call('GET', KEYS[5])
    if packed then
        local since
        owed, since = struct.unpack('<dd', packed)
        owed = math.max(math.min(owed, rate * 60000) - math.max(now - since, 0) * rate, 0)
    end
    if owed + 60000 > rate * 60000 then
        return {{{TOO_MANY_WRITES}, 0}}
    end
end
if size > quota then
    return {{{TOO_LARGE}, 0}}
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], 0, now, 'LIMIT', 0, 100)) do
    drop(name, ARGV[5])
end
local before = redis.call('HGET', KEYS[1], ARGV[1])
local same = before and tonumber(string.match(before, '^%d+')) or 0
local evicted = 0
while total - same + size > quota and evicted < {MOST_EVICTED} do
    local oldest = redis.call('ZRANGE', KEYS[2], 0, 1)
    local name = oldest[1] ~= ARGV[1] and oldest[1] or oldest[2]
    if not name then -- Redis took this part of the index
        redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
        total, same = 0, 0
        break
    end
    drop(name, ARGV[5])
    evicted = evicted + 1
end
if total - same + size > quota then
    redis.call('HSET', KEYS[1], '', total)
    return {{{NO_ROOM}, evicted}}
end
redis.call('SET', KEYS[4], ARGV[2], 'PX', ttl)
redis.call('HSET', KEYS[1], ARGV[1], size .. ' ' .. ARGV[6], '', total - same + size)
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('ZADD', KEYS[3], now + ttl, ARGV[1])
for i = 1, 3 do
    if redis.call('PTTL', KEYS[i]) < ttl then
        redis.call('PEXPIRE', KEYS[i], ttl)
    end
end
if rate then
    redis.call('SET', KEYS[5], struct.pack('<dd', owed + 60000, now), 'PX', 60000)
end
return {{{STORED}, evicted}}
"""
)

#: KEYS: used. ARGV: names of entries that were given. What is no longer known stays so.
USED = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for i = 1, #ARGV do
    redis.call('ZADD', KEYS[1], 'XX', now, ARGV[i])
end
return 1
"""

#: KEYS: known, used, ends. ARGV: what keys of entries begin with; names, each followed by what the index said of it:
#: what was stored anew under it since stays. Returns how many entries there were.
DROP = (
    _DROP
    + """
local dropped = 0
for i = 2, #ARGV, 2 do
    if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
        dropped = dropped + drop(ARGV[i], ARGV[1])
    end
end
if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('HSET', KEYS[1], '', total)
end
return dropped
"""
)


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
    model_name: str | None = None,
    key_id: UUID | None = None,
    request_id: UUID | None = None,
) -> int:
    """Delete a tenant's entries, or only those of a model, key or request; return their number.

    Entries stored meanwhile stay, even under a name to be deleted.
    """
    known, used, ends = _index(tenant_id)
    found = [
        (name, about)
        for name, about in redis.hscan_iter(known, count=1000)
        if name and _is(about, model_name=model_name, key_id=key_id, request_id=request_id)
    ]
    prefix, dropped = entry_key(tenant_id, b""), 0
    for start in range(0, len(found), MOST_EVICTED):
        part = chain.from_iterable(found[start : start + MOST_EVICTED])
        dropped += cast(int, redis.eval(DROP, 3, known, used, ends, prefix, *part))
    return dropped


def _is(about: bytes, *, model_name: str | None, key_id: UUID | None, request_id: UUID | None) -> bool:
    _, key, source, model = about.decode().split(" ", 3)
    return (
        (model_name is None or model == model_name)
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
