-- Sets a tenant's counters from what is stored and from its holds at this instant.
-- KEYS[1]: the tenant's holds. ARGV: the prefix of its counters' keys; the server on which they are counted, or nothing to
-- leave that as it is; the number of holds to remove, and their fields;
-- the number of holds to add, and the field and value of each; for each counter its name, its value before holds are
-- subtracted, and the seconds until it expires (0: never).
local at = 4
local function each(size, work)
    local last = at + tonumber(ARGV[at - 1]) * size - 1
    for i = at, last, size do
        work(i)
    end
    at = last + 2
end
if ARGV[2] ~= '' then
    redis.call('SET', ARGV[1] .. 'server', ARGV[2])
end
each(1, function(i) redis.call('HDEL', KEYS[1], ARGV[i]) end)
each(2, function(i) redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end)
local counted = {}
for i = at - 1, #ARGV, 3 do
    local key = ARGV[1] .. ARGV[i]
    redis.call('SET', key, ARGV[i + 1])
    if ARGV[i + 2] ~= '0' then
        redis.call('EXPIRE', key, ARGV[i + 2])
    end
    counted[ARGV[i]] = key
end
for i, value in ipairs(redis.call('HVALS', KEYS[1])) do
    local amount
    for word in string.gmatch(value, '%S+') do
        if not amount then
            amount = string.gsub(word, '^=', '')
        elseif counted[word] then
            redis.call('DECRBY', counted[word], amount)
        end
    end
end
return 1
