-- Part: what waits, a zset of message (20 digits) by accept time in ms, and the bodies, each with the
-- number of zsets that hold the message. All keys bear the tag of the first.

local TAG = string.match(KEYS[1], '^[^}]*}/')

local function body_key(id)
  return TAG .. 'om:' .. id .. '/m'
end

local function count_key(id)
  return TAG .. 'om:' .. id .. '/n'
end

-- Takes entries out, and bodies that nobody else needs. A missing count deletes nothing. While the slot moves,
-- one of the two may lie on the other server, and both stay for their time to live.
local function release(waiting, ids)
  if #ids == 0 then
    return
  end
  local names = {}
  for i, id in ipairs(ids) do
    names[i] = count_key(id)
  end
  local counts = redis.call('MGET', unpack(names))
  redis.call('ZREM', waiting, unpack(ids))
  for i, id in ipairs(ids) do
    local count = tonumber(string.match(counts[i] or '', '^%d+$'))
    if count and count > 1 then
      redis.call('DECR', names[i])
    elseif count then
      redis.pcall('DEL', body_key(id), names[i])
    end
  end
end

-- Takes out what expired and the oldest beyond the maximum (below zero: none), `step` at most.
local function trim(waiting, oldest_kept, count_max, step)
  local many = redis.call('ZCOUNT', waiting, '-inf', '(' .. oldest_kept)
  if count_max >= 0 then
    many = math.max(many, redis.call('ZCARD', waiting) - count_max)
  end
  many = math.min(many, step)
  if many > 0 then
    release(waiting, redis.call('ZRANGE', waiting, 0, many - 1))
  end
  return many
end

-- A key without a time to live counts as one for ever: a new key gets its time, an old one a later time.
local function live_until(key, is_new, time)
  if is_new then
    redis.call('PEXPIREAT', key, time)
  else
    redis.call('PEXPIREAT', key, time, 'GT')
  end
end
