-- What an auditor found that nobody would have missed, is missed from now on.

-- How many steps a round had is told where its end is told: a step that is taken away later leaves a number that does not fit. Null for what
-- ended before this migration.
ALTER TABLE fairledger.outcomes ADD COLUMN steps integer CONSTRAINT outcomes_steps_range CHECK (steps >= 0);
ALTER TABLE fairledger.voids ADD COLUMN steps integer CONSTRAINT voids_steps_range CHECK (steps >= 0);
COMMENT ON COLUMN fairledger.outcomes.steps IS 'How many steps the round had; 0 for a reservation. Null for what ended before schema version 7.';
COMMENT ON COLUMN fairledger.voids.steps IS 'How many steps the round had; 0 for a reservation. Null for what ended before schema version 7.';

-- A time that no calendar of four digits has, infinity above all, is no time of anything here. V8 says to PostgreSQL that what is stored keeps
-- this too, in a transaction of its own, since only a look at every row can.
ALTER TABLE fairledger.recoveries
    ADD CONSTRAINT recoveries_times_range CHECK (recovered_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') NOT VALID;
ALTER TABLE fairledger.signing_keys
    ADD CONSTRAINT signing_keys_times_range CHECK (valid_from BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' AND valid_until BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') NOT VALID;
ALTER TABLE fairledger.sessions
    ADD CONSTRAINT sessions_times_range CHECK (created_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' AND active_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' AND expires_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' AND closed_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') NOT VALID;
ALTER TABLE fairledger.next_seeds
    ADD CONSTRAINT next_seeds_times_range CHECK (committed_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') NOT VALID;
ALTER TABLE fairledger.seeds
    ADD CONSTRAINT seeds_times_range CHECK (client_seed_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' AND committed_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' AND live_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' AND retired_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') NOT VALID;
ALTER TABLE fairledger.reveals
    ADD CONSTRAINT reveals_times_range CHECK (revealed_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') NOT VALID;
ALTER TABLE fairledger.bets
    ADD CONSTRAINT bets_times_range CHECK (taken_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' AND expires_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') NOT VALID;
ALTER TABLE fairledger.pending
    ADD CONSTRAINT pending_times_range CHECK (taken_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' AND expires_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') NOT VALID;
ALTER TABLE fairledger.steps
    ADD CONSTRAINT steps_times_range CHECK (stepped_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') NOT VALID;
ALTER TABLE fairledger.outcomes
    ADD CONSTRAINT outcomes_times_range CHECK (recorded_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') NOT VALID;
ALTER TABLE fairledger.voids
    ADD CONSTRAINT voids_times_range CHECK (taken_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' AND voided_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') NOT VALID;
ALTER TABLE fairledger.settlements
    ADD CONSTRAINT settlements_times_range CHECK (settled_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') NOT VALID;
