-- Set a part of a budget aside for one gateway process, or check one that is set aside.
--
-- KEYS: holds. ARGV: prefix of the keys of counters; the name of one; the reserve's id; pico-dollars wanted, 0 to check;
-- the least that must be left in the counter; a reserve is at most what is left divided by this; the server that the
-- gateway is connected to.
-- Returns the pico-dollars set aside. For a check: 1 to keep the reserve, 0 to give it back, -1 if Redis has lost it.
-- Lua's doubles only compare and divide; amounts are moved as text, so that counters stay exact.
local key, wanted = ARGV[1] .. ARGV[2], ARGV[4]
if wanted == '0' and redis.call('HEXISTS', KEYS[1], ARGV[3]) == 0 then
    return '-1'
end
local left = redis.call('GET', key)
if not left or tonumber(left) < tonumber(ARGV[5]) then
    return '0'
end
if wanted == '0' then
    return '1'
end
local counted_on = redis.call('GET', ARGV[1] .. SERVER)
if counted_on and ARGV[7] ~= '' and counted_on ~= ARGV[7] then
    return '0'
end
local most = math.floor(tonumber(left) / tonumber(ARGV[6]))
if tonumber(wanted) > most then
    wanted = string.format('%.0f', most)
end
if wanted ~= '0' then
    redis.call('DECRBY', key, wanted)
    redis.call('HSET', KEYS[1], ARGV[3], wanted .. ' ' .. ARGV[2])
end
return wanted
