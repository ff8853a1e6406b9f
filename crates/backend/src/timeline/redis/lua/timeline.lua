-- Part: a group's newest messages, a zset of message (20 digits) by position, and their bodies, each with a time
-- to live. All keys bear the tag of the first.

local TAG = string.match(KEYS[1], '^[^}]*}/')
local STEP = 100

local function body_key(id)
  return TAG .. 'b:' .. id
end

-- Takes messages out, at most STEP, and their bodies.
local function drop(ids)
  if #ids == 0 then
    return
  end
  local names = {}
  for i, id in ipairs(ids) do
    names[i] = body_key(id)
  end
  redis.call('ZREM', KEYS[1], unpack(ids))
  redis.call('DEL', unpack(names))
end
