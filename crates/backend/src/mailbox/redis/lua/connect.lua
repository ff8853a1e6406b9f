#!lua flags=allow-oom
-- Registers a session: in the place of its device's, and of the oldest of others where they are too many.
-- Answers: login, marker, whether mail waits, and sessions that ended (session, value, …): of other
-- devices, of the same one. Or in the place of the login: full, and then those that hold the platform.
-- Full means to a platform that displaces: name those lives as living, or as denied, and ask again.

local replid = ARGV[14]
local wanted = read_request()
local held, last = read_sessions(KEYS[1])
local marker, is_new = read_marker(replid)

local function full(answer, rivals)
  answer[1] = 'full'
  for _, session in ipairs(rivals) do
    table.insert(answer[4], session.field)
    table.insert(answer[4], session.value)
  end
  return answer
end

local answer = { '', marker, mail_waits(), {}, {} }
-- From here on it writes.
if is_new then
  keep_marker(marker, replid)
end

local mine = find_session(held, wanted)
if mine then
  if wanted.incarnation > mine.incarnation or mine.marker ~= marker then
    if wanted.incarnation > mine.incarnation then
      mine.incarnation = wanted.incarnation
    end
    mine.marker = marker
    keep_session(KEYS[1], mine)
  end
  prolong_sessions(KEYS[1])
  answer[1] = mine.login
  return answer
end

local live, gone = part_sessions(held, wanted.denied)
remove_sessions(KEYS[1], gone)
local rivals = on_platform(live, wanted.platform)
local own, others = part_by_device(rivals, wanted.device)
local ended
if wanted.displaces then
  local excess = #others + 1 - wanted.room
  -- The oldest must not leave for a session whose boat has ended. All leave anyhow, where there is room for one.
  if excess > 0 and wanted.room > 1 and not all_live(others, wanted.living) then
    return full(answer, rivals)
  end
  ended = own
  for place = 1, excess do
    table.insert(ended, others[place])
  end
elseif #rivals < wanted.room then
  ended = {}
elseif own[1] then
  ended = { own[1] }
else
  return full(answer, rivals)
end
remove_sessions(KEYS[1], ended)
for _, session in ipairs(ended) do
  local side = answer[session.device == wanted.device and 5 or 4]
  table.insert(side, session.field)
  table.insert(side, session.value)
end
register(wanted, last, marker)
answer[1] = wanted.login
return answer
