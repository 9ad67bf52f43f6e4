-- The first failure of a subscriber after its last success: long streaks end in `failing`, whatever restarts between.
ALTER TABLE subscribers ADD COLUMN failing_since BIGINT;
