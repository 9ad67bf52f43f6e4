-- What a process would switch off of what is counted, to be compared with the others; nothing from a version before this.
ALTER TABLE beats ADD COLUMN switches TEXT;
