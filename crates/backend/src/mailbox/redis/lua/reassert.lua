#!lua flags=allow-oom
-- A boat says that it holds this session.
-- Answers: known, restored, displaced or replaced; marker; whether mail waits; and the sessions that hold
-- its place (session, value, …)

local replid = ARGV[13]
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
  local is_full = #others >= wanted.room
  if own[1] or is_full then
    local answer = { own[1] and 'replaced' or 'displaced', marker, waits }
    for _, session in ipairs(own[1] and own or others) do
      table.insert(answer, session.field)
      table.insert(answer, session.value)
    end
    return answer
  end
end
register(wanted, last, marker)
return { 'restored', marker, waits }
