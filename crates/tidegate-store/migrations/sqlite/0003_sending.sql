-- A rotated secret goes on signing beside its successor for a while.
ALTER TABLE subscribers ADD COLUMN previous_secret BLOB;  -- sealed
ALTER TABLE subscribers ADD COLUMN previous_until INTEGER;
