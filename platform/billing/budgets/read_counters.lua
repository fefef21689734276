-- KEYS[1]: the tenant's holds. ARGV: the prefix of its counters' keys, then the counters' names.
-- Returns the hash of holds and the counters' values.
local left = {}
for i = 2, #ARGV do
    left[i - 1] = redis.call('GET', ARGV[1] .. ARGV[i])
end
return {redis.call('HGETALL', KEYS[1]), left}
