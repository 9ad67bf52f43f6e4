-- What a process's own clock said when it beat, to be compared with the database's; nothing from a version before this.
ALTER TABLE beats ADD COLUMN wall BIGINT;
