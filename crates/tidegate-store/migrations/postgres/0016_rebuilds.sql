-- States are backfilled by counting them anew, under other numbers that take the place of the old ones at the end.

ALTER TABLE metrics ADD COLUMN since BIGINT NOT NULL DEFAULT 0;  -- events that came or happened earlier did not count
ALTER TABLE metrics ADD COLUMN rebuilds BIGINT;                  -- the metric whose place it will take
DROP INDEX metrics_name;
CREATE UNIQUE INDEX metrics_name ON metrics (project, service, type, kind, name)
    WHERE ended_at IS NULL AND rebuilds IS NULL;
CREATE UNIQUE INDEX metrics_rebuilds ON metrics (rebuilds) WHERE ended_at IS NULL AND rebuilds IS NOT NULL;
-- Which types told of the states when it began, and which number takes the place of which: JSON.
ALTER TABLE backfills ADD COLUMN rebuild TEXT NOT NULL DEFAULT '';

-- Keys that nothing is counted under any more are given back: so many numbers were, and whether there may be more.
ALTER TABLE metrics ADD COLUMN keys_back BIGINT NOT NULL DEFAULT 0;
ALTER TABLE metrics ADD COLUMN keys_due BIGINT NOT NULL DEFAULT 0;
