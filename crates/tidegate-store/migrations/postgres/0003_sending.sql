-- A rotated secret goes on signing beside its successor for a while.
ALTER TABLE subscribers
    ADD COLUMN previous_secret BYTEA,        -- sealed
    ADD COLUMN previous_until BIGINT;

-- Whether its endpoint has agreed to be sent to. One that has not is inactive, with the reason `unverified`.
ALTER TABLE subscribers
    ADD COLUMN verification TEXT,            -- pending, verified, failed; NULL: nobody asks
    ADD COLUMN verification_round BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN verification_tries INTEGER NOT NULL DEFAULT 0,
    ADD COLUMN verification_detail TEXT,
    ADD COLUMN allowed_rate INTEGER;         -- requests per minute, as the endpoint agreed to
