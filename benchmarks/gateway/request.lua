-- One chat completion request of about 1.1 KB for wrk, and its summary as one line of JSON.
--
-- Arguments: API key, model, run (8 characters, unlike those of every other run), number of distinct prompts
-- (0: every prompt is new), "stream" or "whole". Sessions: 256 names in turn.

local turn, distinct, head, head_end, before, after = 0, 0

function init(args)
  local key, model, run, stream = args[1], args[2], args[3], args[5] == "stream"
  distinct = tonumber(args[4])
  before = '{"model":"' .. model .. '","messages":[{"role":"system","content":"' ..
    string.rep("You answer briefly and kindly. ", 12) .. '"},{"role":"user","content":"Question ' .. run .. '-'
  after = ': ' .. string.rep("what keeps a room warm while it rains? ", 12) ..
    '"}],"max_tokens":64,"temperature":0.7,"stream":' .. tostring(stream) .. '}'
  head = 'POST ' .. wrk.path .. ' HTTP/1.1\r\nHost: ' .. wrk.host .. '\r\nAuthorization: Bearer ' .. key ..
    '\r\nContent-Type: application/json\r\nContent-Length: ' .. (#before + 10 + #after) .. '\r\nX-Session-Id: s'
  head_end = '\r\n\r\n'
end

function request()
  turn = turn + 1
  local prompt = distinct > 0 and turn % distinct or turn
  return head .. (prompt % 256) .. head_end .. before .. string.format("%010d", prompt) .. after
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"seconds":%.6f,"p50_us":%.1f,"p99_us":%.1f,"bad_status":%d,"broken":%d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
