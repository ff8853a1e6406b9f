#!lua flags=allow-oom
-- What is known of one message. Not `no-writes`: a server that was master and is no longer must refuse.
-- KEYS: waiting, mark. ARGV: message, oldest time that is kept, now, how long a mark counts.
-- Answers: 1 it waits, 2 it was acknowledged lately, 0 neither.

local accepted_at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if accepted_at and tonumber(accepted_at) >= tonumber(ARGV[2]) then
  return 1
end
local acked_at = redis.call('HGET', KEYS[2], ARGV[1])
if acked_at and tonumber(ARGV[3]) - (tonumber(acked_at) or 0) < tonumber(ARGV[4]) then
  return 2
end
return 0
