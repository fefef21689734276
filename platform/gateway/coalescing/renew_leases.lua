-- KEYS: leases of one tenant. ARGV: their lifetime from now in milliseconds; the value that each must have.
for i = 1, #KEYS do
    if redis.call('GET', KEYS[i]) == ARGV[i + 1] then
        redis.call('PEXPIRE', KEYS[i], ARGV[1])
    end
end
return 1
