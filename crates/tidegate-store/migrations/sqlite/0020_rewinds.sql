-- The random part of a delivery, which tells it from another one that got its number when the database had gone back in
-- time; 0 for those made before.
ALTER TABLE deliveries ADD COLUMN nonce INTEGER NOT NULL DEFAULT 0;
