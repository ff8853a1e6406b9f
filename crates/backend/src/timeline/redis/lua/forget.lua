#!lua flags=allow-oom
-- Drops some of the oldest messages.
-- KEYS: timeline. Answers how many are left.

drop(redis.call('ZRANGE', KEYS[1], 0, STEP - 1))
return redis.call('ZCARD', KEYS[1])
