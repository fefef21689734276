-- Record the use of entries. KEYS: used. ARGV: their names; entries that are not in the index are ignored.
for i = 1, #ARGV do
    redis.call('ZADD', KEYS[1], 'XX', now, ARGV[i])
end
return 1
