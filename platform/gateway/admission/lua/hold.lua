-- Subtract an amount from each counter named in ARGV from `first` on, or from none. Return nothing on success, else the
-- outcome and the number of the budget that refuses. UNKNOWN: also if the counters were counted on another `server`,
-- whose last writes this one may lack.
local function hold(prefix, amount, first, server)
    local counted_on = redis.call('GET', prefix .. SERVER)
    if counted_on and server ~= '' and counted_on ~= server then
        return UNKNOWN, 1
    end
    local outcome
    local last = first
    while last <= #ARGV do
        local key = prefix .. ARGV[last]
        if redis.call('EXISTS', key) == 0 then
            outcome = UNKNOWN
            break
        end
        local left = redis.pcall('DECRBY', key, amount)
        if type(left) == 'table' then -- the result does not fit in 64 bits
            outcome = EXCEEDED
            break
        end
        if string.sub(redis.call('GET', key), 1, 1) == '-' then
            redis.call('INCRBY', key, amount)
            outcome = EXCEEDED
            break
        end
        last = last + 1
    end
    if outcome then
        for i = first, last - 1 do
            redis.call('INCRBY', prefix .. ARGV[i], amount)
        end
        return outcome, last - first + 1
    end
end
