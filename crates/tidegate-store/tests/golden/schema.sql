-- version 20
CREATE VIEW members (event, window, prev, bytes) AS
    SELECT seq, fold, fold_prev, length(body) FROM events WHERE fold IS NOT NULL
    UNION ALL SELECT event, window, prev, bytes FROM members_apart;
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
CREATE TABLE backfills (
    no          INTEGER PRIMARY KEY,
    project     INTEGER NOT NULL,
    service     TEXT NOT NULL,
    type        TEXT NOT NULL,
    metrics     TEXT NOT NULL,               -- a JSON list of kind, name and number
    definition  TEXT NOT NULL,
    begin       INTEGER NOT NULL,            -- where it began
    after       INTEGER NOT NULL,            -- everything up to here has been looked at
    until       INTEGER NOT NULL,            -- where it ends, fixed when it began
    looked      INTEGER NOT NULL DEFAULT 0,
    started_at  INTEGER NOT NULL,
    finished_at INTEGER
, rebuild TEXT NOT NULL DEFAULT '') STRICT;
CREATE TABLE catalog (
    project    INTEGER NOT NULL,
    service    TEXT NOT NULL,
    type       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    version    INTEGER NOT NULL,             -- of the configuration, when this row last changed
    definition TEXT, metrics TEXT NOT NULL DEFAULT '[]',                         -- NULL: taken back
    PRIMARY KEY (project, service, type)
) STRICT, WITHOUT ROWID;
CREATE TABLE catalog_versions (
    project    INTEGER NOT NULL,
    service    TEXT NOT NULL,
    type       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    definition TEXT,                         -- NULL: taken back
    metrics    TEXT NOT NULL,
    PRIMARY KEY (project, service, type, version)
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
, fold INTEGER, out_of_order INTEGER NOT NULL DEFAULT 0, nonce INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE event_terms (
    no          INTEGER PRIMARY KEY,
    project     INTEGER NOT NULL,
    source      TEXT NOT NULL,
    type        TEXT NOT NULL,
    keep_ms     INTEGER NOT NULL,
    walked      INTEGER NOT NULL DEFAULT 0,  -- its events up to here are gone, or overdue
    swept_until INTEGER,                     -- when the newest of those that are gone happened, or came
    UNIQUE (project, source, type)
) STRICT;
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
, fold INTEGER, fold_prev INTEGER) STRICT;
CREATE TABLE events_overdue (
    seq INTEGER PRIMARY KEY
) STRICT;
CREATE TABLE gates (
    no         INTEGER PRIMARY KEY,          -- stays when it is deleted and made again
    project    INTEGER NOT NULL,
    name       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    version    INTEGER NOT NULL,             -- of the configuration, when this row last changed
    definition TEXT                          -- NULL: deleted
) STRICT;
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
CREATE TABLE marks (
    incarnation INTEGER PRIMARY KEY,         -- 0: there is one for all lives of the one process
    seq         INTEGER NOT NULL,
    at          INTEGER NOT NULL
) STRICT;
CREATE TABLE "members_apart" (
    event  INTEGER NOT NULL,
    window INTEGER NOT NULL,
    prev   INTEGER,                          -- the member that joined before
    bytes  INTEGER NOT NULL,
    PRIMARY KEY (event, window)
) STRICT, WITHOUT ROWID;
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE metrics (
    no       INTEGER PRIMARY KEY AUTOINCREMENT,
    project  INTEGER NOT NULL,
    service  TEXT NOT NULL,
    type     TEXT NOT NULL,
    kind     INTEGER NOT NULL,
    name     TEXT NOT NULL,
    shape    TEXT NOT NULL,
    keys_max INTEGER NOT NULL,
    keys     INTEGER NOT NULL DEFAULT 0,     -- how many it has
    keep_ms  INTEGER,                        -- how long its rollups are kept; NULL: as long as all others
    ended_at INTEGER,
    ended_no INTEGER                         -- the last event that may have counted
, since INTEGER NOT NULL DEFAULT 0, rebuilds INTEGER, keys_back INTEGER NOT NULL DEFAULT 0, keys_due INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE object_changes (
    no      INTEGER PRIMARY KEY,
    state   INTEGER NOT NULL,
    until   INTEGER NOT NULL,                -- the time of the latest
    changes BLOB NOT NULL                    -- packed, in order of events
) STRICT;
CREATE TABLE objects (
    no     INTEGER PRIMARY KEY,
    state  INTEGER NOT NULL,                 -- the metric
    first  TEXT NOT NULL,                    -- it has the objects from here on, up to where the next one begins
    packed BLOB NOT NULL
) STRICT;
CREATE TABLE postings (
    segment INTEGER NOT NULL,
    metric  INTEGER NOT NULL,
    value   BLOB NOT NULL,                   -- sorts as the values do
    first   INTEGER NOT NULL,                -- the first event
    count   INTEGER NOT NULL,
    events  BLOB NOT NULL,                   -- what follows it, as differences
    PRIMARY KEY (segment, metric, value, first)
) STRICT, WITHOUT ROWID;
CREATE TABLE projects (
    no         INTEGER PRIMARY KEY,
    id         TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    deleted_at INTEGER
, catalog TEXT NOT NULL DEFAULT 'open') STRICT;
CREATE TABLE quarantine (
    no          INTEGER PRIMARY KEY,         -- in order of arrival
    project     INTEGER NOT NULL,
    id          TEXT NOT NULL,
    source      TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    type        TEXT NOT NULL,
    reason      TEXT NOT NULL,
    detail      TEXT NOT NULL,
    at          INTEGER NOT NULL,
    unit        BLOB NOT NULL                -- the event and its sub-events, a JSON list of bodies
) STRICT;
CREATE TABLE rollup_keys (
    metric INTEGER NOT NULL,
    key    TEXT NOT NULL,                    -- a JSON list of values
    no     INTEGER NOT NULL,
    PRIMARY KEY (metric, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE rollups (
    metric INTEGER NOT NULL,
    grain  INTEGER NOT NULL,                 -- how long the bucket is
    bucket INTEGER NOT NULL,                 -- when it begins
    page   INTEGER NOT NULL,
    cells  BLOB NOT NULL,
    PRIMARY KEY (metric, grain, bucket, page)
) STRICT, WITHOUT ROWID;
CREATE TABLE sqlite_sequence(name,seq);
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
, previous_secret BLOB, previous_until INTEGER, verification TEXT, verification_round INTEGER NOT NULL DEFAULT 0, verification_tries INTEGER NOT NULL DEFAULT 0, verification_detail TEXT, allowed_rate INTEGER, failing_since INTEGER, inactive_at INTEGER, destination BLOB) STRICT;
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
CREATE INDEX backfills_running ON backfills (no) WHERE finished_at IS NULL;
CREATE INDEX catalog_version ON catalog (version);
CREATE INDEX catalog_versions_version ON catalog_versions (version);
CREATE INDEX deliveries_claimed ON deliveries (id) WHERE status = 1;
CREATE INDEX deliveries_due ON deliveries (subscriber, due_at, id) WHERE status = 0;
CREATE INDEX deliveries_exhausted ON deliveries (project, id) WHERE status = 4;
CREATE INDEX deliveries_lane ON deliveries (subscriber, lane, status, max(event, abs(replay)), id)
    WHERE lane IS NOT NULL AND status < 3;
CREATE UNIQUE INDEX deliveries_late ON deliveries (event, subscriber, replay) WHERE late = 1;
CREATE INDEX deliveries_subscriber ON deliveries (subscriber, id);
CREATE INDEX events_type ON events (project, type, seq);
CREATE UNIQUE INDEX gates_name ON gates (project, name);
CREATE INDEX gates_version ON gates (version);
CREATE UNIQUE INDEX jobs_id ON jobs (project, id);
CREATE INDEX jobs_project ON jobs (project, no);
CREATE INDEX jobs_running ON jobs (no) WHERE status = 0;
CREATE INDEX metrics_ended ON metrics (ended_at) WHERE ended_at IS NOT NULL;
CREATE UNIQUE INDEX metrics_name ON metrics (project, service, type, kind, name)
    WHERE ended_at IS NULL AND rebuilds IS NULL;
CREATE UNIQUE INDEX metrics_rebuilds ON metrics (rebuilds) WHERE ended_at IS NULL AND rebuilds IS NOT NULL;
CREATE INDEX object_changes_until ON object_changes (state, until);
CREATE UNIQUE INDEX objects_first ON objects (state, first);
CREATE UNIQUE INDEX projects_id ON projects (id) WHERE deleted_at IS NULL;
CREATE INDEX quarantine_project ON quarantine (project, no);
CREATE UNIQUE INDEX quarantine_unit ON quarantine (project, id, source, fingerprint);
CREATE UNIQUE INDEX subscribers_id ON subscribers (project, id) WHERE deleted_at IS NULL;
CREATE INDEX subscribers_version ON subscribers (version);
CREATE INDEX windows_ended ON windows (closed_at) WHERE stage = 3;
CREATE INDEX windows_live ON windows (project, no) WHERE stage < 2;
