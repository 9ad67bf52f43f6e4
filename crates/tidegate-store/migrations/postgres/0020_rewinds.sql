-- The random part of a delivery, which tells it from another one that got its number when the database had gone back in
-- time; 0 for those made before.
ALTER TABLE deliveries ADD COLUMN nonce INTEGER NOT NULL DEFAULT 0;

-- The versions before the one in force, newest first and not all of them: whoever knows one that is not among them reads the
-- whole configuration again.
ALTER TABLE installation ADD COLUMN versions BIGINT[] NOT NULL DEFAULT '{}';

-- Which of the database's histories was written to last: a standby that takes over begins another one.
ALTER TABLE installation ADD COLUMN lineage TEXT NOT NULL DEFAULT '';
