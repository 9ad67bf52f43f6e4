-- version 5
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
CREATE TABLE commits (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    no   INTEGER NOT NULL,
    at   INTEGER NOT NULL
) STRICT;
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
CREATE TABLE delivery_events (
    delivery INTEGER NOT NULL,
    position INTEGER NOT NULL,
    event    INTEGER NOT NULL,
    PRIMARY KEY (delivery, position)
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
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE projects (
    no         INTEGER PRIMARY KEY,
    id         TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    deleted_at INTEGER
) STRICT;
CREATE TABLE subscriber_versions (
    project    INTEGER NOT NULL,
    subscriber INTEGER NOT NULL,
    version    INTEGER NOT NULL,
    definition TEXT,                         -- NULL: deleted
    PRIMARY KEY (project, subscriber, version)
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
, previous_secret BLOB, previous_until INTEGER, failing_since INTEGER, destination BLOB) STRICT;
CREATE INDEX deliveries_claimed ON deliveries (id) WHERE status = 1;
CREATE INDEX deliveries_due ON deliveries (subscriber, due_at, id) WHERE status = 0;
CREATE INDEX deliveries_exhausted ON deliveries (project, id) WHERE status = 4;
CREATE INDEX deliveries_lane ON deliveries (subscriber, lane, status, event, id)
    WHERE lane IS NOT NULL AND status < 3;
CREATE UNIQUE INDEX deliveries_late ON deliveries (event, subscriber, replay) WHERE late = 1;
CREATE INDEX deliveries_subscriber ON deliveries (subscriber, id);
CREATE INDEX delivery_events_event ON delivery_events (event);
CREATE INDEX events_type ON events (project, type, seq);
CREATE UNIQUE INDEX projects_id ON projects (id) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX subscribers_id ON subscribers (project, id) WHERE deleted_at IS NULL;
CREATE INDEX subscribers_version ON subscribers (version);
