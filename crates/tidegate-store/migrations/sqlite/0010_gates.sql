-- Gates: named rates that subscribers and clients share.
CREATE TABLE gates (
    no         INTEGER PRIMARY KEY,          -- stays when it is deleted and made again
    project    INTEGER NOT NULL,
    name       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    version    INTEGER NOT NULL,             -- of the configuration, when this row last changed
    definition TEXT                          -- NULL: deleted
) STRICT;
CREATE UNIQUE INDEX gates_name ON gates (project, name);
CREATE INDEX gates_version ON gates (version);
