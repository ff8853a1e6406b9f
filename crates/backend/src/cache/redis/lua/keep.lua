#!lua
-- Keeps a copy where nothing happened to it since its token was told. Answers 1 if it did.
-- KEYS: the copy. ARGV: how long it is kept in ms, token, the next token, copy, position, change, the master's replid.

local known = redis.call('HMGET', KEYS[1], 'of', 'token')
if known[1] ~= ARGV[7] or known[2] ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], 'token', ARGV[3], 'copy', ARGV[4], 'seq', ARGV[5], 'rev', ARGV[6])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
