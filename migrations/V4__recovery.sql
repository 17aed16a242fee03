-- What a recovery needs: instances tell each other of a loss, and sessions of an old epoch are found and moved in batches.

CREATE TABLE fairledger.quarantines (
    instance text        NOT NULL CONSTRAINT quarantines_instance_form CHECK (instance ~ '^[A-Za-z0-9._-]{1,64}$'),
    epoch    integer     NOT NULL CONSTRAINT quarantines_epoch_range CHECK (epoch >= 0),
    found_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason   text        NOT NULL CONSTRAINT quarantines_reason_length CHECK (char_length(reason) BETWEEN 1 AND 1000),
    CONSTRAINT quarantines_pkey PRIMARY KEY (instance, epoch)
);
COMMENT ON TABLE  fairledger.quarantines IS 'That an instance found acknowledged state missing. In force, for every instance, until a recovery opens a later epoch. Only ever inserted.';
COMMENT ON COLUMN fairledger.quarantines.instance IS 'The instance that found it.';
COMMENT ON COLUMN fairledger.quarantines.epoch IS 'The epoch that the instance worked in. A recovery opens a later one.';
COMMENT ON COLUMN fairledger.quarantines.found_at IS 'When, by the database''s clock.';
COMMENT ON COLUMN fairledger.quarantines.reason IS 'What was missing.';

CREATE INDEX sessions_by_epoch ON fairledger.sessions (epoch, session_id) WHERE status = 'open';

COMMENT ON COLUMN fairledger.seeds.status IS 'live, then revealed or discarded. With bets it is revealed. Without bets it is discarded, but a recovery reveals it: it may have had some that are lost.';
COMMENT ON COLUMN fairledger.seeds.client_seed_source IS 'generated: made here, with the session or by a recovery; player: set by the caller; kept: carried over by a rotation; application: brought with the seed.';

CREATE VIEW fairledger_dispute.quarantines WITH (security_barrier = true) AS
SELECT instance, epoch, found_at, reason FROM fairledger.quarantines;
COMMENT ON VIEW fairledger_dispute.quarantines IS 'Every time that acknowledged state was found missing.';
