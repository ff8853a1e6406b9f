-- Part: a user's sessions, a hash of session → platform, incarnation (20 digits), login, marker, boat and
-- device, each on a line, for no name holds one. Field `last` is the last login number given.

local SESSIONS_KEEP = 30 * 86400 * 1000

local function corrupt(key, field)
  error({ err = 'CORRUPT ' .. key .. ' holds a ' .. field .. ' that cannot be read' })
end

local function read_session(key, field, value)
  local platform, incarnation, login, marker, boat, device =
    string.match(value, '^(%d+)\n(%d+)\n(%d+)\n(%d+)\n([^\n]+)\n([^\n]+)$')
  if not platform then
    corrupt(key, field)
  end
  return {
    field = field,
    value = value,
    platform = platform,
    incarnation = incarnation,
    login = login,
    marker = marker,
    boat = boat,
    device = device,
  }
end

local function read_sessions(key)
  local flat, held, last = redis.call('HGETALL', key), {}, 0
  for i = 1, #flat, 2 do
    if flat[i] == 'last' then
      last = tonumber(flat[i + 1]) or corrupt(key, 'last')
    else
      held[#held + 1] = read_session(key, flat[i], flat[i + 1])
    end
  end
  return held, last
end

-- `lives` holds each as \1 boat \n incarnation \1.
local function has_life(session, lives)
  local life = '\1' .. session.boat .. '\n' .. session.incarnation .. '\1'
  return lives ~= '' and string.find(lives, life, 1, true) ~= nil
end

-- Parts the living from those whose boat has ended.
local function part_sessions(held, denied)
  local live, gone = {}, {}
  for _, session in ipairs(held) do
    local side = has_life(session, denied) and gone or live
    side[#side + 1] = session
  end
  return live, gone
end

local function remove_sessions(key, sessions)
  for _, session in ipairs(sessions) do
    redis.call('HDEL', key, session.field)
  end
end

local function keep_session(key, session)
  local value = table.concat({
    session.platform, session.incarnation, session.login, session.marker, session.boat, session.device,
  }, '\n')
  redis.call('HSET', key, session.field, value)
end

-- What nobody asserts is forgotten in the end.
local function prolong_sessions(key)
  if redis.call('PTTL', key) < SESSIONS_KEEP / 2 then
    redis.call('PEXPIRE', key, SESSIONS_KEEP)
  end
end
