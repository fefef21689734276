-- Return the units still owed of those owed at a time; `rate` units are paid off per millisecond.
local function owed_now(owed, since, rate)
    local passed = math.max(now - since, 0)
    if passed >= MOST_OWED / rate then
        return 0
    end
    return math.max(owed - passed * rate, 0)
end
-- Unpack the field of a limit: requests owed, since when, tokens owed, since when, the limit of tokens at that time.
local function read(packed)
    if packed then
        return struct.unpack('<ddddd', packed)
    end
    return 0, now, 0, now, 0
end
