-- Requests for wrk from a template, and its summary as one line of JSON.
--
-- Arguments: the template (see benchmarks/gateway/load.py), number of distinct prompts (0: every prompt is new).

local turn, distinct, before, between, after = 0, 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  local text = file:read("*a")
  file:close()
  distinct = tonumber(args[2])
  local session, session_end = text:find("{session}", 1, true)
  local number, number_end = text:find("{number}#", 1, true)
  before, between, after = text:sub(1, session - 1), text:sub(session_end + 1, number - 1), text:sub(number_end + 1)
end

function request()
  turn = turn + 1
  local prompt = distinct > 0 and turn % distinct or turn
  return before .. string.format("%09d", prompt % 256) .. between .. string.format("%09d", prompt) .. after
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"seconds":%.6f,"p50_us":%.1f,"p99_us":%.1f,"bad_status":%d,"broken":%d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
