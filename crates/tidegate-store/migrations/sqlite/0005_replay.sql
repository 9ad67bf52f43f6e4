-- Sending again: replays, the jobs that make many of them, and how long things are kept.

-- A replay stands in its lane where its own number puts it, behind what was accepted before it was asked for; everything
-- else stands where its event's number does. Both come from one counter.
DROP INDEX deliveries_lane;
CREATE INDEX deliveries_lane ON deliveries (subscriber, lane, status, max(event, replay), id)
    WHERE lane IS NOT NULL AND status < 3;

-- Work that goes through many events or dead letters, step by step. Its mark moves with what a step wrote.
CREATE TABLE jobs (
    no          INTEGER PRIMARY KEY,
    project     INTEGER NOT NULL,
    id          TEXT NOT NULL,
    selector    TEXT NOT NULL,               -- what was asked for, as JSON
    subscriber  INTEGER,                     -- NULL: of all subscribers
    status      INTEGER NOT NULL,            -- 0 running, 1 done, 2 stopped, 3 failed
    begin       INTEGER NOT NULL,            -- where it began: nothing at or before this number
    after       INTEGER NOT NULL,            -- everything up to here has been looked at
    until       INTEGER NOT NULL,            -- where it ends, fixed when it began
    looked      INTEGER NOT NULL DEFAULT 0,  -- events or dead letters looked at
    matched     INTEGER NOT NULL DEFAULT 0,  -- of these, sent again
    started_at  INTEGER NOT NULL,
    finished_at INTEGER,
    reason      TEXT
) STRICT;
CREATE UNIQUE INDEX jobs_id ON jobs (project, id);
CREATE INDEX jobs_project ON jobs (project, no);
CREATE INDEX jobs_running ON jobs (no) WHERE status = 0;

-- Since when a subscriber is inactive: what is held expires by it.
ALTER TABLE subscribers ADD COLUMN inactive_at INTEGER;
UPDATE subscribers SET inactive_at = (SELECT at FROM commits) WHERE active = 0;
