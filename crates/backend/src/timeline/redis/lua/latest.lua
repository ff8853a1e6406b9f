#!lua flags=allow-oom
-- The newest messages, newest first, up to one whose body is gone. Not `no-writes`: a server that was master and
-- is no longer must refuse.
-- KEYS: timeline. ARGV: how many to leave out, how many at most, bytes of bodies.
-- Answers: message, position, body, …

local offset, count, bytes_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local BODIES_STEP = 50
local answer, bytes = {}, 0
while count > 0 do
  local step = math.min(count, BODIES_STEP)
  local entries = redis.call('ZRANGE', KEYS[1], offset, offset + step - 1, 'REV', 'WITHSCORES')
  local names = {}
  for i = 1, #entries, 2 do
    table.insert(names, body_key(entries[i]))
  end
  if #names == 0 then
    return answer
  end
  for i, body in ipairs(redis.call('MGET', unpack(names))) do
    if not body or bytes > 0 and bytes + #body > bytes_max then
      return answer
    end
    bytes = bytes + math.max(#body, 1)
    table.insert(answer, entries[2 * i - 1])
    table.insert(answer, entries[2 * i])
    table.insert(answer, body)
  end
  offset, count = offset + step, count - step
end
return answer
