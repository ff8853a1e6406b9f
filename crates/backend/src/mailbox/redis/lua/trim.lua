#!lua flags=allow-oom
-- Removes what the policy no longer keeps.
-- KEYS: waiting. ARGV: oldest time that is kept, count_max, how many at most. Answers how many went.

return trim(KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]))
