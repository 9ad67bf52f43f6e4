-- Folding: events gather in windows, and a window that closed is a delivery.

-- stage: 0 gathering, 1 a delivery that may still be joined, 2 a delivery, 3 ended without one.
-- While a window can be joined, memory knows more than its row: `count`, `bytes` and `last` are as of the last time it
-- was written, and `members` has the rest.
CREATE TABLE windows (
    no         INTEGER PRIMARY KEY,          -- drawn from the counter of events and deliveries
    project    INTEGER NOT NULL,
    subscriber INTEGER NOT NULL,
    key        BLOB NOT NULL,                -- a hash of what keeps windows of a subscriber apart
    key_text   TEXT NOT NULL,
    terms      TEXT NOT NULL,                -- what it was opened with, as JSON
    lane       INTEGER,
    replay     INTEGER NOT NULL,             -- 1: of events that are sent again
    opened_at  INTEGER NOT NULL,
    due_at     INTEGER NOT NULL,
    count      INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    first      INTEGER,                      -- the first event that joined
    last       INTEGER,                      -- the last one; each member names the one before it
    stage      INTEGER NOT NULL,
    closed_at  INTEGER,
    closed_by  TEXT,
    delivery   INTEGER
) STRICT;
CREATE INDEX windows_live ON windows (project, no) WHERE stage < 2;
CREATE INDEX windows_ended ON windows (closed_at) WHERE stage = 3;

-- One row per event and window, written in the order of events: a busy fold appends, whatever the number of its windows.
CREATE TABLE members (
    event  INTEGER NOT NULL,
    window INTEGER NOT NULL,
    prev   INTEGER,                          -- the member that joined before
    bytes  INTEGER NOT NULL,
    PRIMARY KEY (event, window)
) STRICT, WITHOUT ROWID;

-- The window that a delivery was, and its place in its lane: `replay` is 0, the delivery's own id for a replay, or its
-- negative for a fold, whose place is where it closed.
ALTER TABLE deliveries ADD COLUMN fold INTEGER;
-- 1: it failed too often and stepped aside for those behind it in its lane, which it has left.
ALTER TABLE deliveries ADD COLUMN out_of_order INTEGER NOT NULL DEFAULT 0;
DROP INDEX deliveries_lane;
CREATE INDEX deliveries_lane ON deliveries (subscriber, lane, status, max(event, abs(replay)), id)
    WHERE lane IS NOT NULL AND status < 3;
DROP TABLE delivery_events;
