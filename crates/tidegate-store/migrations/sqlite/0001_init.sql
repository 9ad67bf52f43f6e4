-- The spine: events, who gets them, and what became of it.
--
-- Events and deliveries draw their keys from one in-memory counter, in order of acceptance: appending is cheap and
-- an order of keys is an order of acceptance. The project stands in every row and in every question asked of it.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- The last transaction: its number tells whether a commit that reported an error is there all the same, its time is
-- the earliest a clock may start from.
CREATE TABLE commits (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    no   INTEGER NOT NULL,
    at   INTEGER NOT NULL
) STRICT;
INSERT INTO commits VALUES (1, 0, 0);

CREATE TABLE projects (
    no         INTEGER PRIMARY KEY,
    id         TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    deleted_at INTEGER
) STRICT;
CREATE UNIQUE INDEX projects_id ON projects (id) WHERE deleted_at IS NULL;

CREATE TABLE keys (
    project    INTEGER NOT NULL,             -- 0: the installation
    id         TEXT NOT NULL,
    role       TEXT NOT NULL,
    name       TEXT NOT NULL,
    prefix     TEXT NOT NULL,                -- shown in lists; the key itself is nowhere
    hash       BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (project, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE subscribers (
    no              INTEGER PRIMARY KEY,
    project         INTEGER NOT NULL,
    id              TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    created_version INTEGER NOT NULL,
    version         INTEGER NOT NULL,        -- of the configuration, when this row last changed
    active          INTEGER NOT NULL,
    inactive_reason TEXT,
    definition      TEXT NOT NULL,
    secret          BLOB NOT NULL,           -- sealed
    deleted_at      INTEGER,
    backfill_after  INTEGER,                 -- events up to here have been looked at; NULL when done
    backfill_until  INTEGER,
    backfill_from   INTEGER                  -- only events accepted at or after this time
) STRICT;
CREATE UNIQUE INDEX subscribers_id ON subscribers (project, id);
CREATE INDEX subscribers_version ON subscribers (version);

-- What each subscriber wanted at each version, so that a trace is judged by the rules of its day.
CREATE TABLE subscriber_versions (
    project    INTEGER NOT NULL,
    subscriber INTEGER NOT NULL,
    version    INTEGER NOT NULL,
    definition TEXT,                         -- NULL: deleted
    PRIMARY KEY (project, subscriber, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    seq         INTEGER PRIMARY KEY,
    project     INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    version     INTEGER NOT NULL,            -- of the configuration it was routed by
    day         INTEGER NOT NULL,            -- of acceptance
    accepted_at INTEGER NOT NULL,
    time        INTEGER NOT NULL,
    source      TEXT NOT NULL,
    id          TEXT NOT NULL,
    type        TEXT NOT NULL,
    subject     TEXT,
    fingerprint BLOB NOT NULL,
    body        BLOB NOT NULL
) STRICT;
CREATE INDEX events_type ON events (project, type, seq);

-- Look-up keys of events, see `event::lookup_key`, in sorted runs of many thousands. A run is complete when it has its
-- row in dedupe_runs; the keys of events younger than the last one's are kept in memory.
CREATE TABLE dedupe (
    page  INTEGER PRIMARY KEY,               -- the run's number, then the page's place in the run
    pairs BLOB NOT NULL                      -- sorted keys, each with its event
) STRICT;
CREATE TABLE dedupe_runs (
    run     INTEGER PRIMARY KEY,
    through INTEGER NOT NULL,                -- the last event it covers
    filter  BLOB NOT NULL,                   -- tells most keys that are not in it
    firsts  BLOB NOT NULL                    -- the first key of every page
) STRICT;

-- status: 0 due, 1 claimed, 2 waiting for its turn in its lane, 3 delivered, 4 exhausted, 5 expired.
-- `held` and `cancelled` are not written here: they follow from the subscriber, so that pausing or deleting one with
-- millions of deliveries is one small write.
CREATE TABLE deliveries (
    id          INTEGER PRIMARY KEY,
    project     INTEGER NOT NULL,
    subscriber  INTEGER NOT NULL,
    event       INTEGER NOT NULL,            -- the first event it carries; the others are in delivery_events
    late        INTEGER NOT NULL,            -- 0: made with its event, whose number its own follows; 1: made later
    replay      INTEGER NOT NULL,            -- 0, or its own id for a replay
    lane        INTEGER,
    recipient   TEXT,                        -- NULL: the subscriber's own destination
    status      INTEGER NOT NULL,
    due_at      INTEGER NOT NULL,
    attempts    INTEGER NOT NULL DEFAULT 0,
    tries       INTEGER NOT NULL DEFAULT 0,  -- failures since its schedule began
    claims      INTEGER NOT NULL DEFAULT 0,  -- the fencing token of the last claim
    lost        INTEGER NOT NULL DEFAULT 0,  -- claims that ended with the process
    incarnation INTEGER,
    created_at  INTEGER NOT NULL,
    finished_at INTEGER,
    reason      TEXT,
    body        BLOB                         -- frozen bytes, where they are not the event's own
) STRICT;
CREATE UNIQUE INDEX deliveries_late ON deliveries (event, subscriber, replay) WHERE late = 1;
CREATE INDEX deliveries_subscriber ON deliveries (subscriber, id);
CREATE INDEX deliveries_due ON deliveries (subscriber, due_at, id) WHERE status = 0;
CREATE INDEX deliveries_claimed ON deliveries (id) WHERE status = 1;
CREATE INDEX deliveries_lane ON deliveries (subscriber, lane, status, event, id)
    WHERE lane IS NOT NULL AND status < 3;
CREATE INDEX deliveries_exhausted ON deliveries (project, id) WHERE status = 4;

CREATE TABLE delivery_events (
    delivery INTEGER NOT NULL,
    position INTEGER NOT NULL,
    event    INTEGER NOT NULL,
    PRIMARY KEY (delivery, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX delivery_events_event ON delivery_events (event);

CREATE TABLE attempts (
    delivery   INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    status     INTEGER,
    error      TEXT,
    detail     TEXT NOT NULL,
    dns_us     INTEGER,
    connect_us INTEGER,
    tls_us     INTEGER,
    wait_us    INTEGER,
    total_us   INTEGER NOT NULL,
    response   TEXT,
    PRIMARY KEY (delivery, n)
) STRICT, WITHOUT ROWID;
