-- KEYS: the lease. ARGV: its value; its lifetime in milliseconds; a value that may be replaced, or ''.
-- Returns the value of another process's lease, or nothing once this one is set.
local found = redis.call('GET', KEYS[1])
if found and found ~= ARGV[3] then
    return found
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
