//! What Redis itself runs: each script is one step that nobody comes in between.

/// The twin of `Basin`: brings a bucket up to now, takes what there is unless somebody else is next, and closes it for a while or
/// opens it if that is the wish. What it is given: how it fills and how much it holds, how many are wanted, for how long it is to be
/// closed (below 0 to open it); which replica asks, when the first in its line became ready, and how long it has patience with
/// others; then what is the same for all. It says -1 to whoever steps back, and -2 when the buckets are not here: nobody has moved
/// them in, or Redis has been emptied since. A key outlives its bucket by as long as somebody could be waited for.
pub(super) const ASK: &str = r"
local drops, depth, wanted, penalty = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local who, ready, patience = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local token, step, longest, astray = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
if redis.call('GET', KEYS[2]) ~= ARGV[12] then return {-2, 0, 0, 0, 0, 0} end
local function filled(x) return math.max(0, x, 2 * x - step, 4 * x - 5 * step, 8 * x - 17 * step) end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local level, at, til, front, since, awaited = depth, now, 0, '0', 0, 0
local kept = redis.call('GET', KEYS[1])
if kept then
    local a, b, c, d, e, f = string.match(kept, '^(%d+) (%d+) (%d+) (%-?%d+) (%-?%d+) (%d+)$')
    if a then level, at, til, front, since, awaited = tonumber(a), tonumber(b), tonumber(c), d, tonumber(e), tonumber(f) end
end
if at - now > astray then til = math.max(0, til - (at - now)); at = now end
now = math.max(now, at)
til = math.min(til, now + longest)
local shut = math.min(now, til)
if shut > at then level = math.min(level + (shut - at) * drops * 8, token) end
local past = math.min(at - til, 3 * step)
level = math.min(level + (filled(past + now - at) - filled(past)) * drops, depth)
local there = 0
if now >= til then there = math.min(wanted, math.floor(level / token)) end
local waited = math.min(awaited, now)
local is_other = front ~= '0' and front ~= who
local is_before = ready < since or (ready == since and who < front)
local is_behind = is_other and not is_before and not (waited > 0 and now - waited >= patience)
local granted, is_changed = there, penalty ~= 0 or there > 0
if who ~= '0' and is_behind and there > 0 then
    granted, there, is_changed = -1, 0, true
    awaited = waited > 0 and waited or now
elseif who ~= '0' then
    local is_next
    if wanted == 0 then is_next = is_other
    elseif there == 0 then is_next = is_behind and awaited == 0
    else is_next = there == wanted and is_other and is_before end
    if not is_next then
        is_changed = true
        front, since, awaited = who, ready, there > 0 and now or 0
        if there == wanted then front = '0' end
    end
end
level = level - there * token
if penalty > 0 then til = math.max(til, now + penalty) elseif penalty < 0 then til = math.min(til, now) end
local full = math.max(0, til + 3 * step - now) + (depth - level) / (drops * 8)
if is_changed then
    redis.call('SET', KEYS[1], string.format('%.0f %.0f %.0f %s %.0f %.0f', level, now, til, front, since, awaited), 'PX', math.ceil((full + 2 * patience) / 1000) + 1)
end
return {granted, level, now, til, front ~= '0' and 1 or 0, since}
";

/// Moves buckets in, as they are in PostgreSQL, unless somebody else just did. It is given where it is kept that they are here, and
/// each bucket's key; then what to keep there, and of each bucket what it holds, for how many microseconds that has been so, for how
/// many it stays closed and for how many it is to be remembered. Whatever is not named is full.
pub(super) const MOVE_IN: &str = r"
if redis.call('GET', KEYS[1]) == ARGV[1] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for place = 2, #KEYS do
    local first = 4 * (place - 2) + 2
    local level, age, closed, lasts = tonumber(ARGV[first]), tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2]), tonumber(ARGV[first + 3])
    redis.call('SET', KEYS[place], string.format('%.0f %.0f %.0f 0 0 0', level, now - age, math.max(0, now + closed)), 'PX', math.ceil(lasts / 1000) + 1)
end
redis.call('SET', KEYS[1], ARGV[1])
return #KEYS - 1
";
