-- What V5 left to do. It reads every bet, and keeps nobody from reading or writing.
ALTER TABLE fairledger.bets VALIDATE CONSTRAINT bets_bet_ref_form;
ALTER TABLE fairledger.bets VALIDATE CONSTRAINT bets_currency_form;
