-- Requests for wrk from a template.
--
-- Arguments: the template (see benchmarks/gateway/load.py), number of distinct prompts (0: every prompt is new).

dofile(debug.getinfo(1, "S").source:match("@(.*/)") .. "../summary.lua")

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
