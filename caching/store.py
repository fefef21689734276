"""What Redis keeps of a tenant's answers: the entries, an index of them, and room for so many bytes and no more.

A tenant's keys, all on one cluster node:

- ``prediction:<name>``: an entry, sealed; it expires by itself.
- ``predictions:known``: a hash: of each name its bytes, key, request and model, and under the empty name all bytes.
- ``predictions:used`` and ``predictions:ends``: names by when they were last used, and by when they expire.
- ``predictions:writes:<key>``: what an API key owes of the writes a minute that it may make.

A Redis that evicts may take any of them: an entry that is gone still counts until it would have expired or is the least
recently used; an index that is gone begins anew, and what it knew expires.
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

#: What an entry takes in Redis beside its value: its key and its places in the index.
OVERHEAD_BYTES = 512
#: So many entries make room for one at most, which holds everybody up for a few milliseconds.
MOST_EVICTED = 1000
#: STORE's first number.
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
    """An entry to be kept, and what bounds it. ``writes_per_minute`` None: unlimited."""

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
        """Return what STORE is called with, the number of its keys first."""
        index, prefix, key, writes = _places(self.tenant_id, self.key_id)
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
    """What Redis keeps of a tenant, by its index."""

    entries: int
    bytes: int


def entry_key(tenant_id: TenantId, name: bytes) -> str:
    """Return where the entry of a name lies."""
    return keyspace.tenant_key(tenant_id, "prediction", name.hex())


def used_key(tenant_id: TenantId) -> str:
    """Return where it is kept when each entry was last used."""
    return _index(tenant_id)[1]


def usage_of(redis: Redis, tenant_id: TenantId) -> CacheUsage:
    """Count what Redis keeps of a tenant; what expired since the last store counts too."""
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
    """Delete a tenant's entries, of this model, key or request where one is named; return how many there were.

    What is stored meanwhile stays, also under a name that was to be deleted.
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
def _places(tenant_id: TenantId, key_id: UUID) -> tuple[tuple[str, str, str], str, str, str]:
    """Return what is the same each time that a key stores: the index, what entries begin with, the key, its writes."""
    writes = keyspace.tenant_key(tenant_id, _ROOM, f"writes:{key_id.hex}")
    return _index(tenant_id), entry_key(tenant_id, b""), key_id.hex, writes


def _index(tenant_id: TenantId) -> tuple[str, str, str]:
    known, used, ends = (keyspace.tenant_key(tenant_id, _ROOM, part) for part in ("known", "used", "ends"))
    return known, used, ends
