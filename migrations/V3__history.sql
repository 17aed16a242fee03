-- What querying the whole history needs: an order for every filter, and a time up to which nothing can come any more.
--
-- Pages are read in one of two orders. By place (session, seed, nonce) where a session, player, commitment or reference is given: the keys
-- have it. By time otherwise: the indexes below. A bet's own rows get as few of these as will do, since each costs every bet.

-- The same constraint, led by the reference, so that it finds a reference without its session too.
ALTER TABLE fairledger.bets
    DROP CONSTRAINT bets_bet_ref_key,
    ADD CONSTRAINT bets_bet_ref_key UNIQUE (bet_ref, session_id);

CREATE INDEX bets_by_time ON fairledger.bets (taken_at);
CREATE INDEX bets_by_game ON fairledger.bets (game, taken_at);

-- Bets that are void or pending are few among the others: they are found by their own rows, in the order of the bets.
ALTER TABLE fairledger.voids ADD COLUMN taken_at timestamptz;
ALTER TABLE fairledger.pending ADD COLUMN taken_at timestamptz;
UPDATE fairledger.voids v SET taken_at = b.taken_at FROM fairledger.bets b
    WHERE (b.session_id, b.seed_no, b.nonce) = (v.session_id, v.seed_no, v.nonce);
UPDATE fairledger.pending p SET taken_at = b.taken_at FROM fairledger.bets b
    WHERE (b.session_id, b.seed_no, b.nonce) = (p.session_id, p.seed_no, p.nonce);
ALTER TABLE fairledger.voids ALTER COLUMN taken_at SET NOT NULL;
ALTER TABLE fairledger.pending ALTER COLUMN taken_at SET NOT NULL;
CREATE INDEX voids_by_time ON fairledger.voids (taken_at);
CREATE INDEX pending_by_time ON fairledger.pending (taken_at);
COMMENT ON COLUMN fairledger.voids.taken_at IS 'The bet''s taken_at, so that voids are found by time.';
COMMENT ON COLUMN fairledger.pending.taken_at IS 'The bet''s taken_at, so that pending bets are found by time.';

CREATE TABLE fairledger.horizon (
    one    boolean     NOT NULL DEFAULT true CONSTRAINT horizon_one CHECK (one),
    as_of  timestamptz NOT NULL,
    CONSTRAINT horizon_pkey PRIMARY KEY (one)
) WITH (fillfactor = 10);
INSERT INTO fairledger.horizon (as_of) VALUES ('epoch');
COMMENT ON TABLE  fairledger.horizon IS 'One row: a time before which every bet is committed. Written now and then by every service, so that a replica, which cannot see the transactions in flight, knows how far it may be read.';
COMMENT ON COLUMN fairledger.horizon.one IS 'There is one row.';
COMMENT ON COLUMN fairledger.horizon.as_of IS 'No bet with an earlier taken_at can be committed any more.';

-- A seed is retired in one transaction and its clear text stored in a second. What a transaction wrote stays in the table's file and in
-- the log even when it is rolled back: a seed that would go on living must never have been in one.
CREATE TABLE fairledger.reveals_due (
    session_id uuid    NOT NULL,
    seed_no    integer NOT NULL,
    CONSTRAINT reveals_due_pkey PRIMARY KEY (session_id, seed_no),
    CONSTRAINT reveals_due_seed_fkey FOREIGN KEY (session_id, seed_no) REFERENCES fairledger.seeds (session_id, seed_no)
);
COMMENT ON TABLE  fairledger.reveals_due IS 'Seeds that are retired for good and whose reveal is still to be stored: for milliseconds, or until the service is back. Taken out with the reveal.';
COMMENT ON COLUMN fairledger.reveals_due.session_id IS 'The session of the seed.';
COMMENT ON COLUMN fairledger.reveals_due.seed_no IS 'Which seed of the session.';

-- The other views show commitments as text, by which no index finds them.
CREATE VIEW fairledger_dispute.commitments WITH (security_barrier = true) AS
SELECT commitment, session_id, seed_no FROM fairledger.commitments;
COMMENT ON VIEW fairledger_dispute.commitments IS 'Where the seed of a commitment is: the commitment as 32 bytes, to be joined with the other views by session_id and seed_no.';
