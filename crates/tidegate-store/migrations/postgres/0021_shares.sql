-- What a process says about its part of all limits: those among whom it divides them, the subscribers of which it has more under
-- way than that allows (absent: more than can be said), and that it is leaving. Nothing from a version before this.
ALTER TABLE beats ADD COLUMN divides BIGINT, ADD COLUMN busy BIGINT[], ADD COLUMN leaving BOOLEAN;
