-- Polls with pauses at random, as of clients that know nothing of each other: wrk -s paced.lua URL -- MEAN_MS
dofile(debug.getinfo(1, "S").source:match("^@?(.*/)") .. "report.lua")
local longest

init = function(args)
  longest = 2 * tonumber(args[1])
  math.randomseed(4711)
end

delay = function()
  return math.random(0, longest)
end
