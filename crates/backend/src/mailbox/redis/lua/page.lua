#!lua flags=allow-oom
-- What waits, oldest first; removes nothing. Not `no-writes`: a server that was master and is no longer
-- must refuse.
-- KEYS: waiting. ARGV: limit, oldest time that is kept, bytes of bodies, and, to go on after an entry, its
-- accept time and message.
-- Answers: 1 if more waits; message, accept time, body or nil, …

local BODIES_STEP = 50
local waiting, limit, bytes_max = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[3])

-- The rank of the first entry strictly after this one, which may be gone. Equal times order by message.
local function rank_after(time, id)
  local low = redis.call('ZCOUNT', waiting, '-inf', '(' .. time)
  local high = redis.call('ZCOUNT', waiting, '-inf', time)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZRANGE', waiting, middle, middle)[1] <= id then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local first = redis.call('ZCOUNT', waiting, '-inf', '(' .. ARGV[2])
if ARGV[4] then
  first = math.max(first, rank_after(ARGV[4], ARGV[5]))
end
-- One more than asked for, to know whether more waits.
local entries = redis.call('ZRANGE', waiting, first, first + limit, 'WITHSCORES')
local there, taken, bytes = #entries / 2, 0, 0
local answer = { 0 }
while taken < math.min(there, limit) do
  local step = math.min(taken + BODIES_STEP, there, limit)
  local names = {}
  for i = taken + 1, step do
    names[#names + 1] = body_key(entries[2 * i - 1])
  end
  for _, body in ipairs(redis.call('MGET', unpack(names))) do
    local size = body and #body or 0
    if bytes > 0 and bytes + size > bytes_max then
      answer[1] = 1
      return answer
    end
    taken, bytes = taken + 1, bytes + size
    table.insert(answer, entries[2 * taken - 1])
    table.insert(answer, entries[2 * taken])
    table.insert(answer, body)
  end
end
answer[1] = taken < there and 1 or 0
return answer
