-- Every change of objects: many to a row, as they were told. What was kept one by one belonged to no release.
DROP TABLE object_changes;
CREATE TABLE object_changes (
    no      INTEGER PRIMARY KEY,
    state   INTEGER NOT NULL,
    until   INTEGER NOT NULL,                -- the time of the latest
    changes BLOB NOT NULL                    -- packed, in order of events
) STRICT;
CREATE INDEX object_changes_until ON object_changes (state, until);
