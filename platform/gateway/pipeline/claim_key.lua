-- KEYS[1] the key. ARGV: the claim, its time to live, ms; the prefix of the keys that count the tenant's stored bytes, the
-- hour, how many hours count; the bytes that it may store in this hour, and in all of them.
-- Returns what the key has; 1: it is claimed; 0: the tenant has stored as much as it may.
local found = redis.call('GET', KEYS[1])
if found then return found end
local hour, stored = tonumber(ARGV[4]), 0
for i = 0, tonumber(ARGV[5]) - 1 do
    stored = stored + tonumber(redis.call('GET', ARGV[3] .. (hour - i)) or '0')
    if i == 0 and stored >= tonumber(ARGV[6]) then return 0 end
end
if stored >= tonumber(ARGV[7]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
