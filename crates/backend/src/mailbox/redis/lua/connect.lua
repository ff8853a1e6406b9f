#!lua flags=allow-oom
-- Registers a session in the place of its platform's others.
-- Answers: login, marker, whether mail waits, and sessions that ended (session, value, …): of other
-- devices, of the same one. Or in the place of the login: full, and then those that hold the platform.

local replid = ARGV[11]
local wanted = read_request()
local held, last = read_sessions(KEYS[1])
local marker, is_new = read_marker(replid)
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
if not wanted.exclusive then
  local is_full = #rivals >= wanted.sessions_max
  local earliest = is_full and earliest_of(rivals, wanted.device)
  if is_full and not earliest then
    answer[1] = 'full'
    for _, session in ipairs(rivals) do
      table.insert(answer[4], session.field)
      table.insert(answer[4], session.value)
    end
    return answer
  end
  rivals = { earliest or nil }
end
remove_sessions(KEYS[1], rivals)
for _, session in ipairs(rivals) do
  local side = answer[session.device == wanted.device and 5 or 4]
  table.insert(side, session.field)
  table.insert(side, session.value)
end
register(wanted, last, marker)
answer[1] = wanted.login
return answer
