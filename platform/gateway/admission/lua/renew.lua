-- Renew leases of one limit. KEYS: the leases. ARGV: their lifetime from now in milliseconds; ids of running requests.
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now)
for i = 2, #ARGV do
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[1]), ARGV[i])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
