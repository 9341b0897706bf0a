-- Polls with random pauses, as independent clients send them: wrk -s paced.lua URL -- MEAN_MS CLIENTS
dofile(debug.getinfo(1, "S").source:match("^@?(.*/)") .. "report.lua")
local longest
local waiting -- clients that have not sent a request yet

init = function(args)
  longest = 2 * tonumber(args[1])
  waiting = tonumber(args[2])
  math.randomseed(4711)
end

delay = function()
  if waiting > 0 then
    waiting = waiting - 1
    return math.random(0, 1000)
  end
  return math.random(0, longest)
end
