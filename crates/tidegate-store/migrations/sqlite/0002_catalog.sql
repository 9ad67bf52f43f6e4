-- The catalog: declared types of events; and the quarantine: events that it did not know, or found fault with.

ALTER TABLE projects ADD COLUMN catalog TEXT NOT NULL DEFAULT 'open';

CREATE TABLE catalog (
    project    INTEGER NOT NULL,
    service    TEXT NOT NULL,
    type       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    version    INTEGER NOT NULL,             -- of the configuration, when this row last changed
    definition TEXT,                         -- NULL: taken back
    PRIMARY KEY (project, service, type)
) STRICT, WITHOUT ROWID;
CREATE INDEX catalog_version ON catalog (version);

-- One row per unit. Its id is not taken by standing here: only acceptance does that.
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
CREATE UNIQUE INDEX quarantine_unit ON quarantine (project, id, source, fingerprint);
CREATE INDEX quarantine_project ON quarantine (project, no);
