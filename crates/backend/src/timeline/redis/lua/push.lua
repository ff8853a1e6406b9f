#!lua
-- Puts messages at their places and keeps the newest. Without room in memory it is refused as a whole.
-- KEYS: timeline, the body of each message. ARGV: how many are kept, how long in ms, then of each message: id,
-- position, body.

local keep, expire = tonumber(ARGV[1]), ARGV[2]
redis.call('ZCARD', KEYS[1])
-- From here on it writes.
for i = 2, #KEYS do
  local at = 3 * i - 3
  local id, seq, body = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local others = {}
  for _, other in ipairs(redis.call('ZRANGE', KEYS[1], seq, seq, 'BYSCORE')) do
    if other ~= id then
      table.insert(others, other)
    end
  end
  drop(others)
  redis.call('ZADD', KEYS[1], seq, id)
  redis.call('SET', KEYS[i], body, 'PX', expire)
end
redis.call('PEXPIRE', KEYS[1], expire)

-- Too many: the oldest go.
local over = redis.call('ZCARD', KEYS[1]) - keep
while over > 0 do
  drop(redis.call('ZRANGE', KEYS[1], 0, math.min(over, STEP) - 1))
  over = over - STEP
end

-- Those whose time has come leave their places, some at each push: more than come.
local gone = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, STEP - 1)) do
  if redis.call('EXISTS', body_key(id)) == 1 then
    break
  end
  table.insert(gone, id)
end
drop(gone)
return #KEYS - 1
