-- Observing: what the catalog declares is counted from the stored events, slice by slice.

-- A metric is another one when it counts something else: its number stands for what it counts, its name for what it is
-- asked by. `type` is empty where all types of a service share it.
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
) STRICT;
CREATE UNIQUE INDEX metrics_name ON metrics (project, service, type, kind, name) WHERE ended_at IS NULL;
CREATE INDEX metrics_ended ON metrics (ended_at) WHERE ended_at IS NOT NULL;

-- Which metrics a declared type has: a JSON list of kind, name and number.
ALTER TABLE catalog ADD COLUMN metrics TEXT NOT NULL DEFAULT '[]';
-- What each type was at each version, so that an event is observed by the rules of its day.
CREATE TABLE catalog_versions (
    project    INTEGER NOT NULL,
    service    TEXT NOT NULL,
    type       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    definition TEXT,                         -- NULL: taken back
    metrics    TEXT NOT NULL,
    PRIMARY KEY (project, service, type, version)
) STRICT, WITHOUT ROWID;
CREATE INDEX catalog_versions_version ON catalog_versions (version);

-- Types whose events are kept for another time than the others.
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
-- Events that outlived their term because something needs them: looked at one by one.
CREATE TABLE events_overdue (
    seq INTEGER PRIMARY KEY
) STRICT;

-- Up to where events have been observed, and when the last of them was accepted. It moves with what it stands for.
CREATE TABLE marks (
    incarnation INTEGER PRIMARY KEY,         -- 0: there is one for all lives of the one process
    seq         INTEGER NOT NULL,
    at          INTEGER NOT NULL
) STRICT;
INSERT INTO marks VALUES (0, 0, 0);

-- The keys of a metric, numbered in order of first sight.
CREATE TABLE rollup_keys (
    metric INTEGER NOT NULL,
    key    TEXT NOT NULL,                    -- a JSON list of values
    no     INTEGER NOT NULL,
    PRIMARY KEY (metric, key)
) STRICT, WITHOUT ROWID;

-- What is counted: the cells of many keys in one bucket, packed.
CREATE TABLE rollups (
    metric INTEGER NOT NULL,
    grain  INTEGER NOT NULL,                 -- how long the bucket is
    bucket INTEGER NOT NULL,                 -- when it begins
    page   INTEGER NOT NULL,
    cells  BLOB NOT NULL,
    PRIMARY KEY (metric, grain, bucket, page)
) STRICT, WITHOUT ROWID;

-- Objects as they were last seen, and every change of theirs: many to a row, as they were told.
CREATE TABLE objects (
    state   INTEGER NOT NULL,                -- the metric
    object  TEXT NOT NULL,
    value   TEXT NOT NULL,
    time    INTEGER NOT NULL,
    event   INTEGER NOT NULL,
    visited TEXT NOT NULL,                   -- a JSON list of the states it has been in
    PRIMARY KEY (state, object)
) STRICT, WITHOUT ROWID;
CREATE TABLE object_changes (
    no      INTEGER PRIMARY KEY,
    state   INTEGER NOT NULL,
    until   INTEGER NOT NULL,                -- the time of the latest
    changes BLOB NOT NULL                    -- packed, in order of events
) STRICT;
CREATE INDEX object_changes_until ON object_changes (state, until);

-- Which events have which value. A segment is a stretch of numbers: writing stays in the newest one, and whoever looks
-- for the newest events goes from segment to segment.
CREATE TABLE postings (
    segment INTEGER NOT NULL,
    metric  INTEGER NOT NULL,
    value   BLOB NOT NULL,                   -- sorts as the values do
    first   INTEGER NOT NULL,                -- the first event
    count   INTEGER NOT NULL,
    events  BLOB NOT NULL,                   -- what follows it, as differences
    PRIMARY KEY (segment, metric, value, first)
) STRICT, WITHOUT ROWID;

-- Events that were accepted before a type declared a metric, counted all the same. Its mark moves with what it counts.
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
) STRICT;
CREATE INDEX backfills_running ON backfills (no) WHERE finished_at IS NULL;
