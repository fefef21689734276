"""What Redis runs for a request: it is admitted, it may hold more money, it ends. Each script is one atomic step.

A tenant's keys, all on one cluster node:

- ``limits``: a hash with a field per limit, five doubles: requests owed, since when, tokens owed, since when, and the
  limit of tokens that this was counted by. Owed are 60 000ths of a request or token, so that a limit of N a minute pays
  off N each millisecond, and every number is a whole one below 2^53, where doubles are exact.
- ``leases:<limit>``: the requests that run, a sorted set by when each lease ends, milliseconds.
- ``holds`` and ``budget:…``: see ``billing.budgets.holds``.

Milliseconds are Redis's own.
"""

from __future__ import annotations

from billing.budgets.holds import SETTLE_FUNCTION
from gateway.redis_client.connection import Script

#: Of one request or token in the buckets.
UNITS = 60_000
#: Where what is owed stops to grow: below 2^53 with room for one more sum.
MOST_OWED = 9 * 10**15
#: A larger answer is not sent by a script, while which everybody waits: it costs a second question.
RIDE_ALONG_BYTES = 32 * 1024
#: After so long without a request a tenant's buckets are forgotten, and the tokens that it still owed.
FORGOTTEN_MS = 3_600_000

#: ADMIT's first number.
ADMITTED, LIMITED, TOO_LARGE, UNKNOWN, EXCEEDED = 1, 0, -1, -2, -3

_CLOCK = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

_BUCKETS = f"""
local UNITS, MOST = {UNITS}, {MOST_OWED}
local function owed_now(owed, since, rate)
    local passed = math.max(now - since, 0)
    if passed >= MOST / rate then
        return 0
    end
    return math.max(owed - passed * rate, 0)
end
local function read(packed)
    if packed then
        return struct.unpack('<ddddd', packed)
    end
    return 0, now, 0, now, 0
end
"""

_HOLD = """
-- Take an amount from each counter, or from none. Returns nothing, or the outcome and the number of the budget.
local function hold(prefix, amount, first)
    local outcome, which
    local last = first
    while last <= #ARGV do
        local key = prefix .. ARGV[last]
        if redis.call('EXISTS', key) == 0 then
            outcome = -2
            break
        end
        local left = redis.pcall('DECRBY', key, amount)
        if type(left) == 'table' then -- it cannot hold so large a number
            outcome = -3
            break
        end
        if string.sub(redis.call('GET', key), 1, 1) == '-' then
            redis.call('INCRBY', key, amount)
            outcome = -3
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
"""

#: KEYS: limits, holds, and the stored answer where one is looked for.
#: ARGV: what keys of leases and of counters begin with; the request's id; requests (0 or 1) and tokens it takes; 1 to
#: take what does not fit of tokens and leases; how long its leases last in milliseconds, 0 for none; what it holds in
#: pico-dollars, and what it holds instead where an answer is found, 0 for nothing; the number of limits; of each its
#: field, requests, tokens and concurrency, ``-`` where unlimited; the names of counters.
#: Returns the outcome, the number of the limit or budget that refuses, what of a limit refuses (1 requests, 2 tokens,
#: 3 concurrency), milliseconds until it will not, the stored answer (its size where it is larger than
#: RIDE_ALONG_BYTES), and of each limit the requests and tokens owed, after what this request took.
ADMIT = Script.of(
    _CLOCK
    + _BUCKETS
    + _HOLD
    + SETTLE_FUNCTION
    + f"""
local leases, counters, request = ARGV[1], ARGV[2], ARGV[3]
local cost, tokens, forced, lease = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1', tonumber(ARGV[7])
local held, count = ARGV[8], tonumber(ARGV[10])
local budgets = 11 + 4 * count
local answer = false
if KEYS[3] then
    local bytes = redis.call('STRLEN', KEYS[3])
    if bytes > 0 then -- what is only repeated takes a request and its price, nothing else
        tokens, lease, held = 0, 0, ARGV[9]
        if held == '0' then
            budgets = #ARGV + 1
        end
        answer = bytes <= {RIDE_ALONG_BYTES} and redis.call('GET', KEYS[3]) or bytes
    end
end
local fields, packed = {{}}, {{}}
for i = 1, count do
    fields[i] = ARGV[7 + 4 * i]
end
if count > 0 then
    packed = redis.call('HMGET', KEYS[1], unpack(fields))
end
local asked, used, figures, set_back = {{}}, {{}}, {{}}, false
local line, kind, wait = 0, 0, 0
local function refuse(by, which, ms)
    if ms > wait then
        line, kind, wait = by, which, ms
    end
end
for i = 1, count do
    local rate, flow = tonumber(ARGV[8 + 4 * i]), tonumber(ARGV[9 + 4 * i])
    local together = tonumber(ARGV[10 + 4 * i])
    local requests, asked_at, spent, spent_at, flow_then = read(packed[i])
    set_back = set_back or asked_at > now or spent_at > now
    asked[i], used[i], figures[i] = 0, 0, flow or 0
    if rate then
        -- a limit that was lowered makes nobody wait for more than a minute
        asked[i] = owed_now(math.min(requests, rate * UNITS), asked_at, rate)
        local over = asked[i] + (cost - rate) * UNITS
        if cost > 0 and over > 0 then
            refuse(i, 1, math.ceil(over / rate))
        end
    end
    if flow then
        if flow ~= flow_then then
            spent = math.min(spent, flow * UNITS)
        end
        used[i] = owed_now(spent, spent_at, flow)
        if tokens > 0 and not forced then
            if tokens > flow then
                return {{{TOO_LARGE}, i, 2, 0, false}}
            end
            local over = used[i] + (tokens - flow) * UNITS
            if over > 0 then
                refuse(i, 2, math.ceil(over / flow))
            end
        end
    end
    if together and lease > 0 and not forced then
        redis.call('ZREMRANGEBYSCORE', leases .. fields[i], 0, now)
        if redis.call('ZCARD', leases .. fields[i]) >= together then
            refuse(i, 3, 1000)
        end
    end
end
local outcome, which = {ADMITTED}, 0
if kind > 0 then
    outcome, which = {LIMITED}, line
elseif budgets <= #ARGV and string.sub(redis.call('HGET', KEYS[2], request) or '', 1, 1) ~= '=' then
    settle(KEYS[2], counters, request, '0') -- what an earlier try of the same request held and never settled
    local refused, by = hold(counters, held, budgets)
    if refused then
        outcome, which = refused, by
    else
        redis.call('HSET', KEYS[2], request, held .. ' ' .. table.concat(ARGV, ' ', budgets))
    end
end
local reply = {{outcome, which, kind, wait, answer}}
local state = {{}}
for i = 1, count do
    if outcome == {ADMITTED} then
        asked[i] = asked[i] + cost * UNITS
        used[i] = math.min(used[i] + tokens * UNITS, MOST)
        if lease > 0 and ARGV[10 + 4 * i] ~= '-' then
            redis.call('ZADD', leases .. fields[i], now + lease, request)
            redis.call('PEXPIRE', leases .. fields[i], lease)
        end
    end
    state[2 * i - 1], state[2 * i] = fields[i], struct.pack('<ddddd', asked[i], now, used[i], now, figures[i])
    reply[4 + 2 * i], reply[5 + 2 * i] = asked[i], used[i]
end
-- a refusal takes nothing, but a clock that was set back must not stop the buckets
if count > 0 and (outcome == {ADMITTED} or set_back) then
    redis.call('HSET', KEYS[1], unpack(state))
    redis.call('PEXPIRE', KEYS[1], {FORGOTTEN_MS})
end
return reply
"""
)

#: KEYS: holds. ARGV: what keys of counters begin with; the request's id; pico-dollars more and in all; 1 to begin a
#: hold where there is none; the names of counters. Returns the outcome and the number of the budget that refuses;
#: UNKNOWN too where nothing is held.
EXTEND = Script.of(
    _HOLD
    + """
local held = redis.call('HGET', KEYS[1], ARGV[2])
if held and string.sub(held, 1, 1) == '=' or not held and ARGV[5] ~= '1' then
    return {-2, 1}
end
local refused, by = hold(ARGV[1], ARGV[3], 6)
if refused then
    return {refused, by}
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[4] .. ' ' .. table.concat(ARGV, ' ', 6))
return {1, 0}
"""
)

#: KEYS: holds. ARGV: what keys of counters begin with; the request's id; what it cost in pico-dollars; the names of
#: counters. Ends its hold, or charges it where there is none, because it spent a slice. May be told twice.
CHARGE = Script.of(
    SETTLE_FUNCTION
    + """
if settle(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) or ARGV[3] == '0' or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
    return 0
end
redis.call('HSET', KEYS[1], ARGV[2], '=' .. ARGV[3] .. ' ' .. table.concat(ARGV, ' ', 4))
for i = 4, #ARGV do
    if redis.call('EXISTS', ARGV[1] .. ARGV[i]) == 1 then
        redis.call('DECRBY', ARGV[1] .. ARGV[i], ARGV[3])
    end
end
return 1
"""
)

#: KEYS: holds. ARGV: what keys of counters begin with; the name of one; the id of a slice of it; pico-dollars wanted, 0
#: for a slice that was taken before; what must be left; one part in how many of that is the most. Returns the
#: pico-dollars that were set aside; of a slice from before 1 where it may be kept; 0 where it may not; -1 where it is
#: no longer there. Its sums are rough and may be: what is moved is moved as text.
RESERVE = Script.of(
    """
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
local most = math.floor(tonumber(left) / tonumber(ARGV[6]))
if tonumber(wanted) > most then
    wanted = string.format('%.0f', most)
end
if wanted ~= '0' then
    redis.call('DECRBY', key, wanted)
    redis.call('HSET', KEYS[1], ARGV[3], wanted .. ' ' .. ARGV[2])
end
return wanted
"""
)

#: KEYS: limits, holds. ARGV: what keys of leases and of counters begin with; the request's id; tokens used beyond those
#: taken, negative for fewer; what it cost in pico-dollars, empty where nothing is held; of each limit its field, tokens
#: (``-`` where unlimited) and 1 where it leases.
SETTLE = Script.of(
    _CLOCK
    + _BUCKETS
    + SETTLE_FUNCTION
    + f"""
local more = tonumber(ARGV[4]) * UNITS
for i = 6, #ARGV, 3 do
    local flow = tonumber(ARGV[i + 1])
    if flow and more ~= 0 then
        local requests, asked_at, spent, spent_at = read(redis.call('HGET', KEYS[1], ARGV[i]) or false)
        spent = math.max(math.min(owed_now(spent, spent_at, flow) + more, MOST), 0)
        redis.call('HSET', KEYS[1], ARGV[i], struct.pack('<ddddd', requests, asked_at, spent, now, flow))
        redis.call('PEXPIRE', KEYS[1], {FORGOTTEN_MS})
    end
    if ARGV[i + 2] == '1' then
        redis.call('ZREM', ARGV[1] .. ARGV[i], ARGV[3])
    end
end
if ARGV[5] ~= '' then
    settle(KEYS[2], ARGV[2], ARGV[3], ARGV[5])
end
return 1
"""
)

#: KEYS: leases of one limit. ARGV: how long they last from now in milliseconds; ids of requests that run.
RENEW = Script.of(
    _CLOCK
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now)
for i = 2, #ARGV do
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[1]), ARGV[i])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
)
