-- KEYS: the key, and the tenant's stored bytes in this hour. ARGV: the claim, the response that replaces it, what
-- replaces it if the response exceeds the hour's limit, that limit in bytes, the time to live, ms, and the bytes that
-- each record counts for besides its value.
local found = redis.call('GET', KEYS[1])
-- An earlier attempt has stored it. WAIT promises nothing but for writes of its own connection: so this one writes, too.
if found and (found == ARGV[2] or found == ARGV[3]) then return redis.call('PEXPIRE', KEYS[1], ARGV[5]) end
if found and found ~= ARGV[1] then return 0 end
local value = ARGV[2]
if tonumber(redis.call('GET', KEYS[2]) or '0') + #value + ARGV[6] > tonumber(ARGV[4]) then
    value = ARGV[3]
end
redis.call('INCRBY', KEYS[2], #value + ARGV[6])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('SET', KEYS[1], value, 'PX', ARGV[5])
return 1
