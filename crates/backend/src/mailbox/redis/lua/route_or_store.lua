-- Looks who is there, and stores where nobody is, as one step.
-- KEYS: sessions; with mail: body, count, and for each platform: waiting, mark
-- ARGV: now, denied, how long a mark counts; with mail: message, accept time, body, and for each platform:
--       its number, 1 if forced, oldest time that is kept, count_max, until when it is kept
-- Answers: live sessions (session, value, …), platforms stored for, platforms that have it, and how many
--          were dropped for each that was stored for
--
-- Without a `#!lua` line: so a look is answered when memory is full, and a store is refused at its first
-- write, which therefore is one that needs memory.

local STEP = 256
local now, id, accepted_at, body = tonumber(ARGV[1]), ARGV[4], ARGV[5], ARGV[6]
local live, gone = part_sessions(read_sessions(KEYS[1]), ARGV[2])

local answer, here = { {}, {}, {}, {} }, {}
for _, session in ipairs(live) do
  here[session.platform] = true
  table.insert(answer[1], session.field)
  table.insert(answer[1], session.value)
end

local stores, added = {}, 0
for i = 0, (#KEYS - 3) / 2 - 1 do
  local waiting, mark = KEYS[4 + 2 * i], KEYS[5 + 2 * i]
  local platform, forced = ARGV[7 + 5 * i], ARGV[8 + 5 * i] == '1'
  local acked_at = redis.call('HGET', mark, id)
  if acked_at and now - (tonumber(acked_at) or 0) < tonumber(ARGV[3]) then
    table.insert(answer[3], platform)
  elseif forced or not here[platform] then
    table.insert(answer[2], platform)
    table.insert(stores, {
      waiting = waiting,
      is_known = redis.call('ZSCORE', waiting, id) and true or false,
      is_new = redis.call('ZCARD', waiting) == 0,
      oldest_kept = ARGV[9 + 5 * i],
      count_max = tonumber(ARGV[10 + 5 * i]),
      keep_until = ARGV[11 + 5 * i],
    })
  end
end

if #stores > 0 then
  local has_body = redis.call('EXISTS', KEYS[2]) == 1
  local has_count = redis.call('GET', KEYS[3])
  if has_count and not string.match(has_count, '^%d+$') then
    corrupt(KEYS[3], 'count')
  end
  -- From here on it writes.
  for _, store in ipairs(stores) do
    if redis.call('ZADD', store.waiting, 'NX', accepted_at, id) == 1 then
      added = added + 1
      live_until(store.waiting, store.is_new, store.keep_until)
    end
    if not has_body then
      redis.call('SET', KEYS[2], body, 'PXAT', store.keep_until)
      has_body = true
    else
      redis.call('PEXPIREAT', KEYS[2], store.keep_until, 'GT')
    end
  end
  if added > 0 then
    redis.call('INCRBY', KEYS[3], added)
  end
  for _, store in ipairs(stores) do
    live_until(KEYS[3], not has_count, store.keep_until)
    has_count = true
  end
  for i, store in ipairs(stores) do
    answer[4][i] = 0
    if not store.is_known then
      answer[4][i] = trim(store.waiting, store.oldest_kept, store.count_max, STEP)
    end
  end
end
remove_sessions(KEYS[1], gone)
return answer
