-- Polls; if an event's id is given, one request in a hundred is an approval instead:
-- wrk -s mixed.lua URL -- [EVENT]
dofile(debug.getinfo(1, "S").source:match("^@?(.*/)") .. "report.lua")
local poll, approval
local count = 0

init = function(args)
  poll = wrk.format("GET")
  if args[1] then
    local body = '{"StartRequests":[{"EventId":"' .. args[1] .. '"}]}'
    approval = wrk.format("POST", nil, {["Metadata"] = "true", ["Content-Type"] = "application/json"}, body)
  end
end

request = function()
  count = count + 1
  if approval and count % 100 == 0 then
    return approval
  end
  return poll
end
