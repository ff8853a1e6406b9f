#!lua flags=allow-oom
-- What waits, oldest first; removes nothing. Not `no-writes`: a server that was master and is no longer
-- must refuse.
-- KEYS: waiting. ARGV: limit, oldest time that is kept, bytes of bodies, and, to go on after an entry, its
-- accept time and message.
-- Answers: 1 if more waits; message, accept time, body or nil where none is seen, …

local BODIES_STEP = 50
-- Whoever reads the page looks for these once more, and they count into no limit of bytes.
local UNSEEN_MAX = 50
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

-- The bodies, false for what is not seen. In a slot that moves one may lie on the other server: then a look at
-- several is an error, and a look at one is an error on the old server and finds nothing on the new one.
local function bodies_seen(names)
  local bodies = redis.pcall('MGET', unpack(names))
  if not bodies.err then
    return bodies
  end
  local seen = {}
  for i = 1, #names do
    local body = redis.pcall('GET', names[i])
    seen[i] = type(body) == 'string' and body
  end
  return seen
end

local first = redis.call('ZCOUNT', waiting, '-inf', '(' .. ARGV[2])
if ARGV[4] then
  first = math.max(first, rank_after(ARGV[4], ARGV[5]))
end
-- One more than asked for, to know whether more waits.
local entries = redis.call('ZRANGE', waiting, first, first + limit, 'WITHSCORES')
local there, taken, bytes, unseen = #entries / 2, 0, 0, 0
local answer = { 0 }
while taken < math.min(there, limit) do
  local step = math.min(taken + BODIES_STEP, there, limit)
  local names = {}
  for i = taken + 1, step do
    names[#names + 1] = body_key(entries[2 * i - 1])
  end
  for _, body in ipairs(bodies_seen(names)) do
    local size = body and #body or 0
    if bytes > 0 and bytes + size > bytes_max or unseen == UNSEEN_MAX then
      answer[1] = 1
      return answer
    end
    taken, bytes, unseen = taken + 1, bytes + size, unseen + (body and 0 or 1)
    table.insert(answer, entries[2 * taken - 1])
    table.insert(answer, entries[2 * taken])
    table.insert(answer, body)
  end
end
answer[1] = taken < there and 1 or 0
return answer
