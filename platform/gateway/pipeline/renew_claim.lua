-- KEYS[1] the key; ARGV[1] the claim, ARGV[2] its new time to live, ms.
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
