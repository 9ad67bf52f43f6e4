-- Observing: what the catalog declares is counted from the stored events, slice by slice.

-- A metric is another one when it counts something else: its number stands for what it counts, its name for what it is
-- asked by. `type` is empty where all types of a service share it.
CREATE TABLE metrics (
    no       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project  BIGINT NOT NULL,
    service  TEXT NOT NULL,
    type     TEXT NOT NULL,
    kind     BIGINT NOT NULL,
    name     TEXT NOT NULL,
    shape    TEXT NOT NULL,
    keys_max BIGINT NOT NULL,
    keys     BIGINT NOT NULL DEFAULT 0,      -- how many it has
    keep_ms  BIGINT,                         -- how long its rollups are kept; NULL: as long as all others
    ended_at BIGINT,
    ended_no BIGINT                          -- the last event that may have counted
);
CREATE UNIQUE INDEX metrics_name ON metrics (project, service, type, kind, name) WHERE ended_at IS NULL;
CREATE INDEX metrics_ended ON metrics (ended_at) WHERE ended_at IS NOT NULL;

-- Which metrics a declared type has: a JSON list of kind, name and number.
ALTER TABLE catalog ADD COLUMN metrics TEXT NOT NULL DEFAULT '[]';
-- What each type was at each version, so that an event is observed by the rules of its day.
CREATE TABLE catalog_versions (
    project    BIGINT NOT NULL,
    service    TEXT NOT NULL,
    type       TEXT NOT NULL,
    version    BIGINT NOT NULL,
    definition TEXT,                         -- NULL: taken back
    metrics    TEXT NOT NULL,
    PRIMARY KEY (project, service, type, version)
);
CREATE INDEX catalog_versions_version ON catalog_versions (version);

-- Types whose events are kept for another time than the others; texts as they stand in events.
CREATE TABLE event_terms (
    no          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project     BIGINT NOT NULL,
    source      BYTEA NOT NULL,
    type        BYTEA NOT NULL,
    keep_ms     BIGINT NOT NULL,
    walked      BIGINT NOT NULL DEFAULT 0,   -- its events up to here are gone, or overdue
    swept_until BIGINT,                      -- when the newest of those that are gone happened, or came
    UNIQUE (project, source, type)
);
-- Events that outlived their term because something needs them: looked at one by one.
CREATE TABLE events_overdue (
    seq BIGINT PRIMARY KEY
);
INSERT INTO events_overdue SELECT seq FROM events_kept;
-- Periods that are looked through row by row, since much of them is kept for longer; thin when that is done.
CREATE TABLE periods_kept (
    period  BIGINT PRIMARY KEY,
    is_thin BOOLEAN NOT NULL
);
-- How far retention has come: names and numbers.
CREATE TABLE swept (
    name  TEXT PRIMARY KEY,
    value BIGINT NOT NULL
);

-- Up to where events of a life have been observed, and when the last of them was accepted. It moves with what it stands
-- for, and stays behind when the life ends: then whoever finds it observes the rest.
CREATE TABLE marks (
    incarnation BIGINT PRIMARY KEY,
    seq         BIGINT NOT NULL,
    at          BIGINT NOT NULL
);
INSERT INTO marks SELECT incarnation, (last_value << 20) - 1, 0 FROM replicas, numbers;

-- The keys of a metric, numbered in order of first sight.
CREATE TABLE rollup_keys (
    metric BIGINT NOT NULL,
    key    BYTEA NOT NULL,                   -- a JSON list of values
    no     BIGINT NOT NULL,
    PRIMARY KEY (metric, key)
);

-- What is counted: the cells of many keys in one bucket, packed.
CREATE TABLE rollups (
    metric BIGINT NOT NULL,
    grain  BIGINT NOT NULL,                 -- how long the bucket is
    bucket BIGINT NOT NULL,                 -- when it begins
    page   BIGINT NOT NULL,
    cells  BYTEA NOT NULL,
    PRIMARY KEY (metric, grain, bucket, page)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
-- Packed already.
ALTER TABLE rollups ALTER COLUMN cells SET STORAGE EXTERNAL;

-- Objects as they were last seen, and every change of theirs: many to a row, as they were told.
CREATE TABLE objects (
    state   BIGINT NOT NULL,                -- the metric
    object  BYTEA NOT NULL,
    value   BYTEA NOT NULL,
    time    BIGINT NOT NULL,
    event   BIGINT NOT NULL,
    visited BYTEA NOT NULL,                  -- a JSON list of the states it has been in
    PRIMARY KEY (state, object)
);
CREATE TABLE object_changes (
    no      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state   BIGINT NOT NULL,
    until   BIGINT NOT NULL,                 -- the time of the latest
    changes BYTEA NOT NULL                   -- packed, in order of events
);
CREATE INDEX object_changes_until ON object_changes (state, until);

-- Which events have which value. A segment is a stretch of numbers: writing stays in the newest one, and whoever looks
-- for the newest events goes from segment to segment.
CREATE TABLE postings (
    segment BIGINT NOT NULL,
    metric  BIGINT NOT NULL,
    value   BYTEA NOT NULL,                   -- sorts as the values do
    first   BIGINT NOT NULL,                -- the first event
    count   BIGINT NOT NULL,
    events  BYTEA NOT NULL,                   -- what follows it, as differences
    PRIMARY KEY (segment, metric, value, first)
);

-- Events that were accepted before a type declared a metric, counted all the same. Its mark moves with what it counts.
CREATE TABLE backfills (
    no          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project     BIGINT NOT NULL,
    service     TEXT NOT NULL,
    type        TEXT NOT NULL,
    metrics     TEXT NOT NULL,               -- a JSON list of kind, name and number
    definition  TEXT NOT NULL,
    "begin"     BIGINT NOT NULL,            -- where it began
    after       BIGINT NOT NULL,            -- everything up to here has been looked at
    until       BIGINT NOT NULL,            -- where it ends, fixed when it began
    looked      BIGINT NOT NULL DEFAULT 0,
    started_at  BIGINT NOT NULL,
    finished_at BIGINT
);
CREATE INDEX backfills_running ON backfills (no) WHERE finished_at IS NULL;
