-- KEYS[1] the key; ARGV[1] the claim. Deletes nothing but this claim.
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
