-- The end of an ordinary delivery changes no column that an index looks at, and its new version stays on its page: none of
-- the table's indexes is touched.

-- Its status where somebody looks for it by that; NULL when it is delivered, or claimed and in no lane.
ALTER TABLE deliveries ADD COLUMN shelf SMALLINT
    GENERATED ALWAYS AS (CASE WHEN status IN (0, 2, 4) OR (status = 1 AND lane IS NOT NULL) THEN status END) STORED;
-- Who has claimed it, unless it was claimed as it was made: see `replicas.held`.
ALTER TABLE deliveries ADD COLUMN holder BIGINT;
UPDATE deliveries SET holder = incarnation WHERE status = 1;

-- Blocks of numbers with deliveries that were claimed as they were made and may not have ended. NULL: a process of an
-- earlier release, whose claims are found by looking at all deliveries.
ALTER TABLE replicas ADD COLUMN held BIGINT[];

DROP INDEX deliveries_due;
DROP INDEX deliveries_claimed;
DROP INDEX deliveries_exhausted;
DROP INDEX deliveries_lane;
CREATE INDEX deliveries_due ON deliveries (subscriber, due_at, id) WHERE shelf = 0;
CREATE INDEX deliveries_claimed ON deliveries (holder, id) WHERE holder IS NOT NULL;
CREATE INDEX deliveries_exhausted ON deliveries (project, id) WHERE shelf = 4;
CREATE INDEX deliveries_lane ON deliveries (subscriber, lane, shelf, greatest(event, abs(replay)), id)
    WHERE lane IS NOT NULL AND shelf < 3;

-- Room for the second version of each.
ALTER TABLE deliveries SET (fillfactor = 40);
