#!lua flags=allow-oom
-- Removes exactly this session, unless a later life of its boat holds it.
-- KEYS: sessions. ARGV: session, boat, incarnation. Answers how many were removed.

local value = redis.call('HGET', KEYS[1], ARGV[1])
local held = value and read_session(KEYS[1], ARGV[1], value)
if held and held.boat == ARGV[2] and held.incarnation <= ARGV[3] then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0
