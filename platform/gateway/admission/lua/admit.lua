-- Admit a request: take it from every limit and budget, or from none, and look up its stored response.
--
-- KEYS: limits; holds; the stored response, if it is looked up.
-- ARGV: prefixes of the keys of leases and of counters; the request's id; requests (0 or 1) and tokens that it takes; 1
-- to take tokens and leases even if they do not fit; lifetime of its leases in milliseconds, 0 for none; pico-dollars to
-- hold, and to hold instead if a stored response is found, 0 for none; the server that the gateway is connected to; the
-- number of limits; for each limit its field, requests, tokens and concurrency, '-' if unlimited; the names of counters.
-- Returns the outcome; the number of the limit or budget that refuses; what of a limit refuses (1 requests, 2 tokens,
-- 3 concurrency); milliseconds until it would admit; the stored response, or its size if that exceeds
-- RIDE_ALONG_BYTES; for each limit the requests and tokens owed, including this request.
local leases, counters, request = ARGV[1], ARGV[2], ARGV[3]
local cost, tokens, forced, lease = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1', tonumber(ARGV[7])
local held, server, count = ARGV[8], ARGV[10], tonumber(ARGV[11])
local budgets = 12 + 4 * count
local stored = false
if KEYS[3] then
    local bytes = redis.call('STRLEN', KEYS[3])
    if bytes > 0 then -- a cache hit takes a request and its price, nothing else
        tokens, lease, held = 0, 0, ARGV[9]
        if held == '0' then
            budgets = #ARGV + 1
        end
        stored = bytes <= RIDE_ALONG_BYTES and redis.call('GET', KEYS[3]) or bytes
    end
end
local fields, packed = {}, {}
for i = 1, count do
    fields[i] = ARGV[8 + 4 * i]
end
if count > 0 then
    packed = redis.call('HMGET', KEYS[1], unpack(fields))
end
local requests_owed, tokens_owed, token_limits, clock_set_back = {}, {}, {}, false
local line, kind, wait = 0, 0, 0
local function refuse(by, which, ms)
    if ms > wait then
        line, kind, wait = by, which, ms
    end
end
for i = 1, count do
    local request_limit, token_limit = tonumber(ARGV[9 + 4 * i]), tonumber(ARGV[10 + 4 * i])
    local concurrency = tonumber(ARGV[11 + 4 * i])
    local requests, requests_at, spent, spent_at, token_limit_then = read(packed[i])
    clock_set_back = clock_set_back or requests_at > now or spent_at > now
    requests_owed[i], tokens_owed[i], token_limits[i] = 0, 0, token_limit or 0
    if request_limit then
        -- after a limit was lowered no request waits longer than a minute
        requests_owed[i] = owed_now(math.min(requests, request_limit * UNITS), requests_at, request_limit)
        local over = requests_owed[i] + (cost - request_limit) * UNITS
        if cost > 0 and over > 0 then
            refuse(i, 1, math.ceil(over / request_limit))
        end
    end
    if token_limit then
        if token_limit ~= token_limit_then then
            spent = math.min(spent, token_limit * UNITS)
        end
        tokens_owed[i] = owed_now(spent, spent_at, token_limit)
        if tokens > 0 and not forced then
            if tokens > token_limit then
                return {TOO_LARGE, i, 2, 0, false}
            end
            local over = tokens_owed[i] + (tokens - token_limit) * UNITS
            if over > 0 then
                refuse(i, 2, math.ceil(over / token_limit))
            end
        end
    end
    if concurrency and lease > 0 and not forced then
        redis.call('ZREMRANGEBYSCORE', leases .. fields[i], 0, now)
        if redis.call('ZCARD', leases .. fields[i]) >= concurrency then
            refuse(i, 3, 1000)
        end
    end
end
local outcome, which = ADMITTED, 0
if kind > 0 then
    outcome, which = LIMITED, line
elseif budgets <= #ARGV and string.sub(redis.call('HGET', KEYS[2], request) or '', 1, 1) ~= '=' then
    settle(KEYS[2], counters, request, '0') -- the hold of an earlier attempt of this request that was never settled
    local refused, by = hold(counters, held, budgets, server)
    if refused then
        outcome, which = refused, by
    else
        redis.call('HSET', KEYS[2], request, held .. ' ' .. table.concat(ARGV, ' ', budgets))
    end
end
local reply = {outcome, which, kind, wait, stored}
local state = {}
for i = 1, count do
    if outcome == ADMITTED then
        requests_owed[i] = requests_owed[i] + cost * UNITS
        tokens_owed[i] = math.min(tokens_owed[i] + tokens * UNITS, MOST_OWED)
        if lease > 0 and ARGV[11 + 4 * i] ~= '-' then
            redis.call('ZADD', leases .. fields[i], now + lease, request)
            redis.call('PEXPIRE', leases .. fields[i], lease)
        end
    end
    state[2 * i - 1] = fields[i]
    state[2 * i] = struct.pack('<ddddd', requests_owed[i], now, tokens_owed[i], now, token_limits[i])
    reply[4 + 2 * i], reply[5 + 2 * i] = requests_owed[i], tokens_owed[i]
end
-- A refusal takes nothing, but after the clock was set back the buckets must be written, or they would stand still.
if count > 0 and (outcome == ADMITTED or clock_set_back) then
    redis.call('HSET', KEYS[1], unpack(state))
    redis.call('PEXPIRE', KEYS[1], FORGOTTEN_MS)
end
return reply
