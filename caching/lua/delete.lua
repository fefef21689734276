-- Delete entries. KEYS: known, used, ends. ARGV: prefix of the keys of entries; names, each followed by its value in
-- the index: an entry that was stored anew meanwhile stays. Returns the number of deleted entries.
local dropped = 0
for i = 2, #ARGV, 2 do
    if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
        dropped = dropped + drop(ARGV[i], ARGV[1])
    end
end
if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('HSET', KEYS[1], '', total)
end
return dropped
