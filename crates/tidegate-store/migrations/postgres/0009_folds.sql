-- Folding: events gather in windows, and a window that closed is a delivery.

-- stage: 0 gathering, 1 a delivery that may still be joined, 2 a delivery, 3 ended without one.
-- Any process adds to any window, so its row always tells how it stands.
CREATE TABLE windows (
    no         BIGINT PRIMARY KEY,           -- drawn from the sequence of events and deliveries
    project    BIGINT NOT NULL,
    subscriber BIGINT NOT NULL,
    key        BYTEA NOT NULL,               -- a hash of what keeps windows of a subscriber apart
    lane       BIGINT,
    opened_at  BIGINT NOT NULL,
    due_at     BIGINT NOT NULL,
    bytes      BIGINT NOT NULL,
    first      BIGINT,                       -- the first event that joined
    last       BIGINT,
    closed_at  BIGINT,
    delivery   BIGINT,
    count      INTEGER NOT NULL,
    stage      SMALLINT NOT NULL,
    replay     BOOLEAN NOT NULL,             -- of events that are sent again
    closed_by  TEXT,
    key_text   TEXT NOT NULL,
    terms      TEXT NOT NULL                 -- what it was opened with, as JSON
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX windows_slot ON windows (subscriber, key) WHERE stage < 2;
CREATE INDEX windows_live ON windows (project, no) WHERE stage < 2;
CREATE INDEX windows_due ON windows (due_at, no) WHERE stage = 0;
CREATE INDEX windows_ended ON windows (closed_at) WHERE stage = 3;

-- One row per event and window, in periods like the events, and gone with them.
CREATE TABLE members (
    event    BIGINT NOT NULL,
    "window" BIGINT NOT NULL,
    past     BIGINT,                         -- a number drawn when it joined, if it was accepted before that
    bytes    INTEGER NOT NULL,
    PRIMARY KEY (event, "window")
) PARTITION BY RANGE (event);
CREATE INDEX members_window ON members ("window", event);
CREATE INDEX members_past ON members (past) WHERE past IS NOT NULL;
-- What must outlive its period, or came before there were any.
CREATE TABLE members_kept PARTITION OF members DEFAULT;

-- The window that a delivery was, and its place in its lane: `replay` is 0, the delivery's own id for a replay, or its
-- negative for a fold, whose place is where it closed.
ALTER TABLE deliveries ADD COLUMN fold BIGINT;
-- It failed too often and stepped aside for those behind it in its lane, which it has left.
ALTER TABLE deliveries ADD COLUMN out_of_order BOOLEAN NOT NULL DEFAULT false;
DROP INDEX deliveries_lane;
CREATE INDEX deliveries_lane ON deliveries (subscriber, lane, status, greatest(event, abs(replay)), id)
    WHERE lane IS NOT NULL AND status < 3;
-- `delivery_events` was never written and goes with the next release: processes of the last one still look into it.
