-- The window that an event joined when it was accepted stands in the event's own row: a busy fold appends nothing else.
ALTER TABLE events ADD COLUMN fold INTEGER;      -- the window of the first fold that took it
ALTER TABLE events ADD COLUMN fold_prev INTEGER; -- the member that joined before

-- What joined further windows, or joined later, by a backfill or a replay.
ALTER TABLE members RENAME TO members_apart;

CREATE VIEW members (event, window, prev, bytes) AS
    SELECT seq, fold, fold_prev, length(body) FROM events WHERE fold IS NOT NULL
    UNION ALL SELECT event, window, prev, bytes FROM members_apart;
