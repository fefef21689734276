-- Hold more money for a running request.
--
-- KEYS: holds. ARGV: prefix of the keys of counters; the request's id; pico-dollars to add, and in all; 1 to begin a
-- hold if there is none; the server that the gateway is connected to; the names of counters.
-- Returns the outcome and the number of the budget that refuses. UNKNOWN also means that the request has no hold.
local held = redis.call('HGET', KEYS[1], ARGV[2])
if held and string.sub(held, 1, 1) == '=' or not held and ARGV[5] ~= '1' then
    return {UNKNOWN, 1}
end
local refused, by = hold(ARGV[1], ARGV[3], 7, ARGV[6])
if refused then
    return {refused, by}
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[4] .. ' ' .. table.concat(ARGV, ' ', 7))
return {ADMITTED, 0}
