-- KEYS[1] the key; ARGV[1] the claim, ARGV[2] its new time to live, ms. A claim that expired while Redis stood still, or
-- that Redis lost, is stored again.
local found = redis.call('GET', KEYS[1])
if not found then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return 1
end
if found == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
