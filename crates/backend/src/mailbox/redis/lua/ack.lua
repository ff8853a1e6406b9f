#!lua flags=allow-oom
-- Removes what a device acknowledged, and marks it for a while.
-- KEYS: waiting, mark. ARGV: now, how long a mark counts, how many are kept, message, …
-- Answers the messages that waited, in the order of the question.

local now, keep, marks_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local waited, marks, seen = {}, {}, {}
for i = 4, #ARGV do
  local id = ARGV[i]
  if not seen[id] then
    seen[id] = true
    table.insert(marks, id)
    table.insert(marks, ARGV[1])
    if redis.call('ZSCORE', KEYS[1], id) then
      table.insert(waited, id)
    end
  end
end
redis.call('HLEN', KEYS[2])
-- From here on it writes.
release(KEYS[1], waited)
redis.call('HSET', KEYS[2], unpack(marks))
redis.call('PEXPIRE', KEYS[2], keep)

-- Too many: the oldest go, and some more with them, so that this is seldom. One that is forgotten too
-- early may be stored again, and the client drops the copy.
if redis.call('HLEN', KEYS[2]) > marks_max then
  local flat, young, old = redis.call('HGETALL', KEYS[2]), {}, {}
  for i = 1, #flat, 2 do
    local at = tonumber(flat[i + 1]) or 0
    if now - at < keep then
      table.insert(young, { id = flat[i], at = at })
    else
      table.insert(old, flat[i])
    end
  end
  table.sort(young, function(one, other)
    if one.at ~= other.at then
      return one.at < other.at
    end
    return one.id < other.id
  end)
  if #young > marks_max then
    for i = 1, #young - math.floor(marks_max * 3 / 4) do
      table.insert(old, young[i].id)
    end
  end
  if #old > 0 then
    redis.call('HDEL', KEYS[2], unpack(old))
  end
end
return waited
