-- The secrets of a definition (the endpoint's URL, the values of its headers), sealed; NULL: the definition has them.
ALTER TABLE subscribers ADD COLUMN destination BLOB;
