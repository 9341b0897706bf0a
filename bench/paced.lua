-- Polls with pauses at random, as of clients that know nothing of each other: wrk -s paced.lua URL -- MEAN_MS CLIENTS
dofile(debug.getinfo(1, "S").source:match("^@?(.*/)") .. "report.lua")
local longest
local absent -- clients that have not asked yet

init = function(args)
  longest = 2 * tonumber(args[1])
  absent = tonumber(args[2])
  math.randomseed(4711)
end

delay = function()
  if absent > 0 then
    absent = absent - 1
    return math.random(0, 1000)
  end
  return math.random(0, longest)
end
