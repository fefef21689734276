-- Requests for wrk that ask for numbered prompts, each as often as it is liked.
--
-- Arguments: the template (see benchmarks/cache/questions.py), number of prompts, skew (Zipf's exponent; 0: all in
-- turn), and where to begin: with which prompt, or of a skew from which seed, since wrk itself draws the same each time.

dofile(debug.getinfo(1, "S").source:match("@(.*/)") .. "../summary.lua")

local turn, prompts, before, after
local shares

function init(args)
  local file = assert(io.open(args[1], "rb"))
  local text = file:read("*a")
  file:close()
  prompts = tonumber(args[2])
  local number, number_end = text:find("{number}#", 1, true)
  before, after = text:sub(1, number - 1), text:sub(number_end + 1)
  local skew, start = tonumber(args[3]), tonumber(args[4])
  turn = start - 1 -- wrk takes one request beforehand to look at, and does not send it
  if skew > 0 then
    math.randomseed(start)
    shares = {}
    local sum = 0
    for rank = 1, prompts do
      sum = sum + rank ^ -skew
      shares[rank] = sum
    end
  end
end

local function ranked()
  local wanted, low, high = math.random() * shares[prompts], 1, prompts
  while low < high do
    local middle = math.floor((low + high) / 2)
    if shares[middle] < wanted then low = middle + 1 else high = middle end
  end
  return low
end

function request()
  local number = shares and ranked() or turn % prompts
  turn = turn + 1
  return before .. string.format("%09d", number) .. after
end
