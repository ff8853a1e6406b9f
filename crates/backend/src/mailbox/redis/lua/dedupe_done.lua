#!lua flags=allow-oom
-- The log has a send: what is pending under its name is done, if it is the same.
-- KEYS: the name. ARGV: the send, how long it is remembered.

local known = redis.call('GET', KEYS[1])
if not known then
  redis.call('SET', KEYS[1], 'd' .. ARGV[1], 'PX', ARGV[2])
elseif known == 'p' .. ARGV[1] then
  redis.call('SET', KEYS[1], 'd' .. ARGV[1], 'KEEPTTL')
end
return 0
