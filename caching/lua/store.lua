-- Store an entry within the tenant's quota and the key's limit of writes.
--
-- KEYS: known, used, ends, the entry, writes. ARGV: its name; the entry; its time to live in milliseconds; the tenant's
-- quota in bytes; prefix of the keys of entries; API key, request and model, separated by blanks; writes per minute, '-'
-- if unlimited.
-- Returns the outcome and the number of evicted entries. A rejected write leaves an entry of the same name unchanged.
local size, quota, ttl = #ARGV[2] + OVERHEAD_BYTES, tonumber(ARGV[4]), tonumber(ARGV[3])
local rate, owed = tonumber(ARGV[7]), 0
if rate then -- a write is 60000 units; each millisecond pays off as many units as writes per minute
    local packed = redis.call('GET', KEYS[5])
    if packed then
        local since
        owed, since = struct.unpack('<dd', packed)
        owed = math.max(math.min(owed, rate * 60000) - math.max(now - since, 0) * rate, 0)
    end
    if owed + 60000 > rate * 60000 then
        return {TOO_MANY_WRITES, 0}
    end
end
if size > quota then
    return {TOO_LARGE, 0}
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], 0, now, 'LIMIT', 0, 100)) do
    drop(name, ARGV[5])
end
local before = redis.call('HGET', KEYS[1], ARGV[1])
local same = before and tonumber(string.match(before, '^%d+')) or 0
local evicted = 0
while total - same + size > quota and evicted < MOST_EVICTED do
    local oldest = redis.call('ZRANGE', KEYS[2], 0, 1)
    local name = oldest[1] ~= ARGV[1] and oldest[1] or oldest[2]
    if not name then -- Redis has evicted this part of the index
        redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
        total, same = 0, 0
        break
    end
    drop(name, ARGV[5])
    evicted = evicted + 1
end
if total - same + size > quota then
    redis.call('HSET', KEYS[1], '', total)
    return {NO_ROOM, evicted}
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
return {STORED, evicted}
