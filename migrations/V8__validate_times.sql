-- What V7 left to do. It reads every row of these tables, and keeps nobody from reading or writing.
ALTER TABLE fairledger.recoveries VALIDATE CONSTRAINT recoveries_times_range;
ALTER TABLE fairledger.signing_keys VALIDATE CONSTRAINT signing_keys_times_range;
ALTER TABLE fairledger.sessions VALIDATE CONSTRAINT sessions_times_range;
ALTER TABLE fairledger.next_seeds VALIDATE CONSTRAINT next_seeds_times_range;
ALTER TABLE fairledger.seeds VALIDATE CONSTRAINT seeds_times_range;
ALTER TABLE fairledger.reveals VALIDATE CONSTRAINT reveals_times_range;
ALTER TABLE fairledger.bets VALIDATE CONSTRAINT bets_times_range;
ALTER TABLE fairledger.pending VALIDATE CONSTRAINT pending_times_range;
ALTER TABLE fairledger.steps VALIDATE CONSTRAINT steps_times_range;
ALTER TABLE fairledger.outcomes VALIDATE CONSTRAINT outcomes_times_range;
ALTER TABLE fairledger.voids VALIDATE CONSTRAINT voids_times_range;
ALTER TABLE fairledger.settlements VALIDATE CONSTRAINT settlements_times_range;
