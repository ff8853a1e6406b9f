#!lua flags=allow-oom
-- How many of the newest messages there are, up to one whose body is gone.
-- KEYS: timeline. ARGV: how many at most.

local most, found = tonumber(ARGV[1]), 0
while found < most do
  local ids = redis.call('ZRANGE', KEYS[1], found, math.min(most, found + STEP) - 1, 'REV')
  if #ids == 0 then
    return found
  end
  for _, id in ipairs(ids) do
    if redis.call('EXISTS', body_key(id)) == 0 then
      return found
    end
    found = found + 1
  end
end
return found
