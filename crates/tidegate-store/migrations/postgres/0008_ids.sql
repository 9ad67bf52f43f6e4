-- An id is free again when its subscriber is gone: what is declared in files may come back.
CREATE UNIQUE INDEX subscribers_id ON subscribers (project, id) WHERE deleted_at IS NULL;
