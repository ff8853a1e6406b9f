#!lua
-- Remembers how far a user has received; never goes back.
-- KEYS: how far. ARGV: the message, how long it is remembered.

local known = redis.call('GET', KEYS[1])
if known and known >= ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return 0
