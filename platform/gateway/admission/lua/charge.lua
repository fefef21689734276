-- Settle a request's hold, or charge its cost if it has none because it used a budget reserve. Idempotent.
--
-- KEYS: holds. ARGV: prefix of the keys of counters; the request's id; its cost in pico-dollars; the names of counters.
if settle(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) or ARGV[3] == '0' or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
    return 0
end
redis.call('HSET', KEYS[1], ARGV[2], '=' .. ARGV[3] .. ' ' .. table.concat(ARGV, ' ', 4))
for i = 4, #ARGV do
    if redis.call('EXISTS', ARGV[1] .. ARGV[i]) == 1 then
        redis.call('DECRBY', ARGV[1] .. ARGV[i], ARGV[3])
    end
end
return 1
