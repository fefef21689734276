-- End a request: correct its tokens, release its leases and settle its hold.
--
-- KEYS: limits; holds. ARGV: prefixes of the keys of leases and of counters; the request's id; tokens used beyond those
-- reserved, negative for fewer; its cost in pico-dollars, '' if it has no hold; for each limit its field, tokens ('-' if
-- unlimited) and 1 if it has leases.
local more = tonumber(ARGV[4]) * UNITS
for i = 6, #ARGV, 3 do
    local token_limit = tonumber(ARGV[i + 1])
    if token_limit and more ~= 0 then
        local requests, requests_at, spent, spent_at = read(redis.call('HGET', KEYS[1], ARGV[i]) or false)
        spent = math.max(math.min(owed_now(spent, spent_at, token_limit) + more, MOST_OWED), 0)
        redis.call('HSET', KEYS[1], ARGV[i], struct.pack('<ddddd', requests, requests_at, spent, now, token_limit))
        redis.call('PEXPIRE', KEYS[1], FORGOTTEN_MS)
    end
    if ARGV[i + 2] == '1' then
        redis.call('ZREM', ARGV[1] .. ARGV[i], ARGV[3])
    end
end
if ARGV[5] ~= '' then
    settle(KEYS[2], ARGV[2], ARGV[3], ARGV[5])
end
return 1
