-- KEYS[1]: the tenant's holds. ARGV: the prefix of its counters' keys, then the counters' names.
-- Returns the hash of holds, the counters' values and the server on which they were counted. Removes what is no hash in the place of the holds.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'hash' and kind ~= 'none' then
    redis.log(redis.LOG_WARNING, 'removing ' .. KEYS[1] .. ', which is no hash but a ' .. kind)
    redis.call('DEL', KEYS[1])
end
local left = {}
for i = 2, #ARGV do
    local value = redis.pcall('GET', ARGV[1] .. ARGV[i])
    left[i - 1] = type(value) == 'string' and value -- else there is none, or the key has another type
end
return {redis.call('HGETALL', KEYS[1]), left, redis.call('GET', ARGV[1] .. 'server')}
