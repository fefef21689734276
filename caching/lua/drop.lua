-- Remove one entry from the index and delete it; KEYS 1 to 3 are the index. Keeps `total`, the tenant's bytes.
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
