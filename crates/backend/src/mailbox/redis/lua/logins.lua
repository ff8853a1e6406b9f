-- Part: what a login and a boat that says again what it holds have in common.
-- KEYS: sessions, waiting of the platform, epoch
-- ARGV: now, denied, session, platform, sessions that it may have, incarnation, boat, device,
--       oldest time that is kept, a new marker, displace or refuse, lives that are not denied, the number
--       of its login or 0, and the master's replid

local function read_request()
  return {
    now = tonumber(ARGV[1]),
    denied = ARGV[2],
    room = tonumber(ARGV[5]),
    displaces = ARGV[11] == 'displace',
    living = ARGV[12],
    held = tonumber(ARGV[13]),
    field = ARGV[3],
    platform = ARGV[4],
    incarnation = ARGV[6],
    boat = ARGV[7],
    device = ARGV[8],
  }
end

-- The marker of the data that is there: another one where it is missing or was another master's, for
-- then some may have been lost.
local function read_marker(replid)
  local known = redis.call('GET', KEYS[3])
  local marker, of = string.match(known or '', '^(%d+) (%S+)$')
  if marker and of == replid then
    return marker, false
  end
  return ARGV[10], true
end

local function keep_marker(marker, replid)
  redis.call('SET', KEYS[3], marker .. ' ' .. replid)
end

local function mail_waits()
  return redis.call('ZCOUNT', KEYS[2], ARGV[9], '+inf') > 0 and 1 or 0
end

local function find_session(held, wanted)
  for _, session in ipairs(held) do
    if session.field == wanted.field and session.boat == wanted.boat then
      return session
    end
  end
end

local function on_platform(held, platform)
  local found = {}
  for _, session in ipairs(held) do
    if session.platform == platform then
      found[#found + 1] = session
    end
  end
  return found
end

-- Parts sessions of one device from those of others, each in the order of their logins.
local function part_by_device(sessions, device)
  local own, others = {}, {}
  table.sort(sessions, function(one, other)
    return tonumber(one.login) < tonumber(other.login)
  end)
  for _, session in ipairs(sessions) do
    local side = session.device == device and own or others
    side[#side + 1] = session
  end
  return own, others
end

-- True where the caller has named the life of each.
local function all_live(sessions, lives)
  for _, session in ipairs(sessions) do
    if not has_life(session, lives) then
      return false
    end
  end
  return true
end

-- Those with a larger number than this login; all where its number is not known.
local function later_than(login, sessions)
  local found = {}
  for _, session in ipairs(sessions) do
    if login == 0 or tonumber(session.login) >= login then
      found[#found + 1] = session
    end
  end
  return found
end

-- New numbers grow, whatever the clock does.
local function register(session, last, marker)
  local login = session.held > 0 and session.held or math.max(last + 1, session.now)
  session.login = string.format('%.0f', login)
  session.marker = marker
  redis.call('HSET', KEYS[1], 'last', string.format('%.0f', math.max(last, login)))
  keep_session(KEYS[1], session)
  prolong_sessions(KEYS[1])
end
