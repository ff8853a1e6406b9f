#!lua flags=allow-oom
-- Forgets a copy, and ends its tokens. Answers 0 where it stays.
-- KEYS: the copy. ARGV: nothing, or position and change: one that goes so far is not old.

if #ARGV == 2 then
  local known = redis.call('HMGET', KEYS[1], 'seq', 'rev')
  local seq, rev = known[1] and tonumber(known[1]), known[2] and tonumber(known[2])
  if seq and rev and seq >= tonumber(ARGV[1]) and rev >= tonumber(ARGV[2]) then
    return 0
  end
end
redis.call('DEL', KEYS[1])
return 1
