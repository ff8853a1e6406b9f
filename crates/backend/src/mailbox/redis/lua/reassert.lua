#!lua flags=allow-oom
-- A boat says that it holds this session.
-- Answers: known, restored, displaced, replaced or full; marker; whether mail waits; and the sessions that
-- hold its place (session, value, …). Full: earlier logins would leave for it; name the lives of these as
-- living, or as denied, and ask again.

local replid = ARGV[14]
local wanted = read_request()
local held, last = read_sessions(KEYS[1])
local marker, is_new = read_marker(replid)
local waits = mail_waits()
-- From here on it writes.
if is_new then
  keep_marker(marker, replid)
end

local mine = find_session(held, wanted)
if mine then
  local is_later = wanted.incarnation > mine.incarnation
  -- What was lost since it was told a marker may have been its own.
  local is_restored = is_later or mine.marker ~= marker
  if is_restored then
    mine.incarnation = is_later and wanted.incarnation or mine.incarnation
    mine.marker = marker
    keep_session(KEYS[1], mine)
  end
  prolong_sessions(KEYS[1])
  return { is_restored and 'restored' or 'known', marker, waits }
end

local live, gone = part_sessions(held, wanted.denied)
remove_sessions(KEYS[1], gone)
if wanted.displaces then
  local rivals = on_platform(live, wanted.platform)
  local own, others = part_by_device(rivals, wanted.device)
  local function held_by(outcome, sessions)
    local answer = { outcome, marker, waits }
    for _, session in ipairs(sessions) do
      table.insert(answer, session.field)
      table.insert(answer, session.value)
    end
    return answer
  end
  if later_than(wanted.held, own)[1] then
    return held_by('replaced', own)
  end
  if #later_than(wanted.held, others) >= wanted.room then
    return held_by('displaced', others)
  end
  -- Where it was displaced by nobody, those that it had displaced have come back before it.
  local earlier = own
  for place = 1, #others + 1 - wanted.room do
    table.insert(earlier, others[place])
  end
  if earlier[1] and not all_live(rivals, wanted.living) then
    return held_by('full', rivals)
  end
  remove_sessions(KEYS[1], earlier)
end
register(wanted, last, marker)
return { 'restored', marker, waits }
