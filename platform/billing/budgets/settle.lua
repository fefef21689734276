-- Ends a hold and charges what the request cost. Returns whether the hold was open.
-- A missing counter stays missing: it is rebuilt from data that includes this request already.
-- A request that cost nothing has no usage row to wait for, so its hold is removed at once.
local function settle(holds, counters, request, cost)
    local held = redis.call('HGET', holds, request)
    if not held or string.sub(held, 1, 1) == '=' then
        return false
    end
    if cost == '0' then
        redis.call('HDEL', holds, request)
    else
        redis.call('HSET', holds, request, '=' .. cost .. string.match(held, '^%S+(.*)$'))
    end
    local amount
    for word in string.gmatch(held, '%S+') do
        if not amount then
            amount = word
        elseif redis.call('EXISTS', counters .. word) == 1 then
            redis.call('INCRBY', counters .. word, amount)
            redis.call('DECRBY', counters .. word, cost)
        end
    end
    return true
end
