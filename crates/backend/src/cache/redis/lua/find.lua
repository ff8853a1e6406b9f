#!lua
-- What is there, and the token with which it may be kept anew. What another master made is not believed. Not
-- `no-writes`: a server that was master and is no longer must refuse.
-- KEYS: the copy. ARGV: how long it is kept in ms, a token for a new one, the master's replid.
-- Answers: token, copy or nothing.

local known = redis.call('HMGET', KEYS[1], 'of', 'token', 'copy')
if known[2] and known[1] == ARGV[3] then
  return { known[2], known[3] }
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'of', ARGV[3], 'token', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return { ARGV[2], false }
