-- Every change of objects: many to a row, as they were told. What was kept one by one belonged to no release.
DROP TABLE object_changes;
CREATE TABLE object_changes (
    no      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state   BIGINT NOT NULL,
    until   BIGINT NOT NULL,                 -- the time of the latest
    changes BYTEA NOT NULL                   -- packed, in order of events
);
CREATE INDEX object_changes_until ON object_changes (state, until);
