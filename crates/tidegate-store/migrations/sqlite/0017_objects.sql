-- Objects: many to a row, in order of their ids. What was kept one by one belonged to no release, and what was counted
-- of it goes with it.
DROP TABLE objects;
CREATE TABLE objects (
    no     INTEGER PRIMARY KEY,
    state  INTEGER NOT NULL,                 -- the metric
    first  TEXT NOT NULL,                    -- it has the objects from here on, up to where the next one begins
    packed BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX objects_first ON objects (state, first);
DELETE FROM object_changes;
DELETE FROM rollups WHERE metric IN (SELECT no FROM metrics WHERE kind IN (2, 3));
