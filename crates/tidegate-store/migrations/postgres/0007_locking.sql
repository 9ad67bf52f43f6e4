-- The secrets of a definition (the endpoint's URL, the values of its headers), sealed; NULL: the definition has them.
ALTER TABLE subscribers ADD COLUMN destination BYTEA;

-- Sealed once by whoever came first: a process with another master key finds out when it starts, not when it sends.
ALTER TABLE installation ADD COLUMN sealed BYTEA;
