-- The random part of a delivery's id. After a failover that loses commits, a number can be drawn again: the nonce tells the two
-- deliveries apart. 0 for deliveries from before this migration.
ALTER TABLE deliveries ADD COLUMN nonce INTEGER NOT NULL DEFAULT 0;

-- The most recent earlier versions of the configuration, newest first. A process that knows a version outside this list reads the
-- whole configuration again.
ALTER TABLE installation ADD COLUMN versions BIGINT[] NOT NULL DEFAULT '{}';

-- The server's identity and timeline at the last write. Promoting a standby changes it.
ALTER TABLE installation ADD COLUMN lineage TEXT NOT NULL DEFAULT '';
