-- Sessions, seeds, bets and all that follows from a bet. The token ledger has a migration of its own.
--
-- Rules that every table here keeps:
--   * session_id leads every key, so that everything of a session can live on one node (commitments: the commitment);
--   * history is only ever inserted: the service's role gets no right to change or delete it (see the rights in src/db);
--   * every guard is a column of the row that a statement updates;
--   * constraints are named, because errors are told apart by name.

CREATE TABLE fairledger.recoveries (
    epoch        integer     NOT NULL CONSTRAINT recoveries_epoch_range CHECK (epoch > 0),
    recovered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason       text        NOT NULL CONSTRAINT recoveries_reason_length CHECK (char_length(reason) BETWEEN 1 AND 1000),
    findings     json        NOT NULL,
    CONSTRAINT recoveries_pkey PRIMARY KEY (epoch)
);
COMMENT ON TABLE  fairledger.recoveries IS 'One row for each recovery after acknowledged state was lost. Kept for ever.';
COMMENT ON COLUMN fairledger.recoveries.epoch IS 'The epoch that this recovery opened. The epoch before the first recovery is 0 and has no row.';
COMMENT ON COLUMN fairledger.recoveries.recovered_at IS 'When the operator confirmed, by the database''s clock.';
COMMENT ON COLUMN fairledger.recoveries.reason IS 'Why, in the operator''s words.';
COMMENT ON COLUMN fairledger.recoveries.findings IS 'What was found missing: witness rows and what they should have been.';

CREATE TABLE fairledger.witness (
    instance    text    NOT NULL CONSTRAINT witness_instance_form CHECK (instance ~ '^[A-Za-z0-9._-]{1,64}$'),
    writer      integer NOT NULL CONSTRAINT witness_writer_range CHECK (writer >= 0),
    incarnation uuid    NOT NULL,
    epoch       integer NOT NULL CONSTRAINT witness_epoch_range CHECK (epoch >= 0),
    seq         bigint  NOT NULL CONSTRAINT witness_seq_range CHECK (seq >= 0),
    CONSTRAINT witness_pkey PRIMARY KEY (instance, writer)
) WITH (fillfactor = 50);
COMMENT ON TABLE  fairledger.witness IS 'How many write transactions each connection of each service instance has committed, for comparison with a file outside the database.';
COMMENT ON COLUMN fairledger.witness.instance IS 'Name of the service instance.';
COMMENT ON COLUMN fairledger.witness.writer IS 'Number of the writing connection within the instance.';
COMMENT ON COLUMN fairledger.witness.incarnation IS 'Changes whenever the instance starts counting anew.';
COMMENT ON COLUMN fairledger.witness.epoch IS 'The recovery epoch in which the writer works.';
COMMENT ON COLUMN fairledger.witness.seq IS 'Counted up inside each write transaction.';

CREATE TABLE fairledger.seed_keys (
    key_id        text        NOT NULL CONSTRAINT seed_keys_key_id_form CHECK (key_id ~ '^[A-Za-z0-9._-]{1,32}$'),
    check_value   bytea       NOT NULL CONSTRAINT seed_keys_check_value_length CHECK (octet_length(check_value) = 57),
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT seed_keys_pkey PRIMARY KEY (key_id)
);
COMMENT ON TABLE  fairledger.seed_keys IS 'The keys that seal server seeds, by name only: the keys themselves are never in the database.';
COMMENT ON COLUMN fairledger.seed_keys.key_id IS 'Name of the key in the operator''s key ring.';
COMMENT ON COLUMN fairledger.seed_keys.check_value IS 'A constant sealed under the key, so that a wrong key of the right name is refused at start.';
COMMENT ON COLUMN fairledger.seed_keys.registered_at IS 'When a service first started with the key.';

CREATE TABLE fairledger.signing_keys (
    signing_key_no integer     NOT NULL CONSTRAINT signing_keys_no_range CHECK (signing_key_no > 0),
    signer         bytea       NOT NULL CONSTRAINT signing_keys_signer_length CHECK (octet_length(signer) = 32),
    valid_from     timestamptz NOT NULL DEFAULT clock_timestamp(),
    valid_until    timestamptz,
    CONSTRAINT signing_keys_pkey PRIMARY KEY (signing_key_no),
    CONSTRAINT signing_keys_signer_key UNIQUE (signer)
);
COMMENT ON TABLE  fairledger.signing_keys IS 'The Ed25519 public keys that records were signed with.';
COMMENT ON COLUMN fairledger.signing_keys.signing_key_no IS 'Short name used by the rows that carry a signature.';
COMMENT ON COLUMN fairledger.signing_keys.signer IS 'The public key, 32 bytes.';
COMMENT ON COLUMN fairledger.signing_keys.valid_from IS 'When a service first started with the key.';
COMMENT ON COLUMN fairledger.signing_keys.valid_until IS 'When a service started with a later key instead; null while in use.';

CREATE TABLE fairledger.sessions (
    session_id uuid        NOT NULL,
    player_ref text        CONSTRAINT sessions_player_ref_length CHECK (char_length(player_ref) BETWEEN 1 AND 128),
    origin     text        NOT NULL CONSTRAINT sessions_origin_check CHECK (origin IN ('service', 'application')),
    status     text        NOT NULL DEFAULT 'open' CONSTRAINT sessions_status_check CHECK (status IN ('open', 'closed')),
    epoch      integer     NOT NULL CONSTRAINT sessions_epoch_range CHECK (epoch >= 0),
    created_at timestamptz NOT NULL,
    active_at  timestamptz NOT NULL,
    expires_at timestamptz,
    closed_at  timestamptz,
    CONSTRAINT sessions_pkey PRIMARY KEY (session_id),
    CONSTRAINT sessions_closed_with_time CHECK ((status = 'closed') = (closed_at IS NOT NULL)),
    CONSTRAINT sessions_expiry_of_applications CHECK (origin = 'application' OR expires_at IS NULL)
) WITH (fillfactor = 90);
CREATE INDEX sessions_idle ON fairledger.sessions (active_at) WHERE status = 'open';
CREATE INDEX sessions_expiring ON fairledger.sessions (expires_at) WHERE status = 'open' AND expires_at IS NOT NULL;
CREATE INDEX sessions_by_player ON fairledger.sessions (player_ref, session_id) WHERE player_ref IS NOT NULL;
COMMENT ON TABLE  fairledger.sessions IS 'A player''s run of play.';
COMMENT ON COLUMN fairledger.sessions.session_id IS 'Chosen by the caller, or a UUIDv7 made here.';
COMMENT ON COLUMN fairledger.sessions.player_ref IS 'The operator''s own name for the player; the owner may sever it.';
COMMENT ON COLUMN fairledger.sessions.origin IS 'service: seeds are made here, the next one always committed. application: the caller brings its own seeds (the SeedStore trait).';
COMMENT ON COLUMN fairledger.sessions.status IS 'open, then closed for ever.';
COMMENT ON COLUMN fairledger.sessions.epoch IS 'The recovery epoch the session was last moved to.';
COMMENT ON COLUMN fairledger.sessions.created_at IS 'By the database''s clock.';
COMMENT ON COLUMN fairledger.sessions.active_at IS 'Last seen in use, written at most every few minutes; idle sessions are closed by it.';
COMMENT ON COLUMN fairledger.sessions.expires_at IS 'End of an application session''s time to live, moved on by every use; null for sessions of the service.';
COMMENT ON COLUMN fairledger.sessions.closed_at IS 'When the session was closed.';

CREATE TABLE fairledger.commitments (
    commitment bytea   NOT NULL CONSTRAINT commitments_length CHECK (octet_length(commitment) = 32),
    session_id uuid    NOT NULL,
    seed_no    integer NOT NULL CONSTRAINT commitments_seed_no_range CHECK (seed_no >= 0),
    CONSTRAINT commitments_pkey PRIMARY KEY (commitment)
);
COMMENT ON TABLE  fairledger.commitments IS 'Directory of every commitment ever made, unique for ever: where its seed is. Has no foreign key, so that it can be distributed by commitment.';
COMMENT ON COLUMN fairledger.commitments.commitment IS 'SHA-256 of the server seed''s 64 hex characters.';
COMMENT ON COLUMN fairledger.commitments.session_id IS 'The session that the seed belongs to.';
COMMENT ON COLUMN fairledger.commitments.seed_no IS 'Which seed of the session.';

CREATE TABLE fairledger.next_seeds (
    session_id   uuid        NOT NULL,
    seed_no      integer     NOT NULL CONSTRAINT next_seeds_seed_no_range CHECK (seed_no > 0),
    commitment   bytea       NOT NULL CONSTRAINT next_seeds_commitment_length CHECK (octet_length(commitment) = 32),
    sealed_seed  bytea       NOT NULL CONSTRAINT next_seeds_sealed_seed_length CHECK (octet_length(sealed_seed) = 73),
    seal_key_id  text        NOT NULL,
    epoch        integer     NOT NULL CONSTRAINT next_seeds_epoch_range CHECK (epoch >= 0),
    committed_at timestamptz NOT NULL,
    CONSTRAINT next_seeds_pkey PRIMARY KEY (session_id),
    CONSTRAINT next_seeds_session_fkey FOREIGN KEY (session_id) REFERENCES fairledger.sessions (session_id),
    CONSTRAINT next_seeds_seal_key_fkey FOREIGN KEY (seal_key_id) REFERENCES fairledger.seed_keys (key_id)
);
CREATE INDEX next_seeds_by_seal_key ON fairledger.next_seeds (seal_key_id);
COMMENT ON TABLE  fairledger.next_seeds IS 'The seed of a session that is committed and published but not in use yet. Moved to seeds when it goes live or is discarded.';
COMMENT ON COLUMN fairledger.next_seeds.session_id IS 'One next seed a session at the most.';
COMMENT ON COLUMN fairledger.next_seeds.seed_no IS 'The number it will have among the session''s seeds.';
COMMENT ON COLUMN fairledger.next_seeds.commitment IS 'SHA-256 of the server seed''s 64 hex characters.';
COMMENT ON COLUMN fairledger.next_seeds.sealed_seed IS 'Version byte, 24 bytes of nonce, 32 bytes of seed and 16 of tag: XChaCha20-Poly1305.';
COMMENT ON COLUMN fairledger.next_seeds.seal_key_id IS 'The key it is sealed under.';
COMMENT ON COLUMN fairledger.next_seeds.epoch IS 'The recovery epoch in which it was committed.';
COMMENT ON COLUMN fairledger.next_seeds.committed_at IS 'When the commitment became durable.';

CREATE TABLE fairledger.seeds (
    session_id         uuid        NOT NULL,
    seed_no            integer     NOT NULL CONSTRAINT seeds_seed_no_range CHECK (seed_no >= 0),
    commitment         bytea       NOT NULL CONSTRAINT seeds_commitment_length CHECK (octet_length(commitment) = 32),
    sealed_seed        bytea       NOT NULL CONSTRAINT seeds_sealed_seed_length CHECK (octet_length(sealed_seed) = 73),
    seal_key_id        text        NOT NULL,
    client_seed        text        CONSTRAINT seeds_client_seed_form
                                   CHECK (char_length(client_seed) BETWEEN 1 AND 64 AND position(':' IN client_seed) = 0),
    client_seed_source text        CONSTRAINT seeds_client_seed_source_check
                                   CHECK (client_seed_source IN ('generated', 'player', 'kept', 'application')),
    client_seed_at     timestamptz,
    epoch              integer     NOT NULL CONSTRAINT seeds_epoch_range CHECK (epoch >= 0),
    committed_at       timestamptz NOT NULL,
    live_at            timestamptz,
    status             text        NOT NULL CONSTRAINT seeds_status_check CHECK (status IN ('live', 'revealed', 'discarded')),
    next_nonce         bigint      NOT NULL DEFAULT 0 CONSTRAINT seeds_next_nonce_range CHECK (next_nonce BETWEEN 0 AND 9007199254740991),
    pending            integer     NOT NULL DEFAULT 0 CONSTRAINT seeds_pending_range CHECK (pending >= 0),
    retired_at         timestamptz,
    retired_by         text        CONSTRAINT seeds_retired_by_check
                                   CHECK (retired_by IN ('rotation', 'client_seed', 'closing', 'idle', 'replaced', 'expiry', 'recovery')),
    CONSTRAINT seeds_pkey PRIMARY KEY (session_id, seed_no),
    CONSTRAINT seeds_session_fkey FOREIGN KEY (session_id) REFERENCES fairledger.sessions (session_id),
    CONSTRAINT seeds_seal_key_fkey FOREIGN KEY (seal_key_id) REFERENCES fairledger.seed_keys (key_id),
    CONSTRAINT seeds_retired_with_time CHECK ((status = 'live') = (retired_at IS NULL) AND (status = 'live') = (retired_by IS NULL)),
    CONSTRAINT seeds_client_seed_when_live CHECK ((live_at IS NULL) = (client_seed IS NULL)
        AND (client_seed IS NULL) = (client_seed_source IS NULL) AND (client_seed IS NULL) = (client_seed_at IS NULL)),
    CONSTRAINT seeds_bets_only_when_live CHECK (live_at IS NOT NULL OR (next_nonce = 0 AND status <> 'live')),
    CONSTRAINT seeds_nothing_pending_when_retired CHECK (status = 'live' OR pending = 0),
    CONSTRAINT seeds_discarded_without_bets CHECK (status <> 'discarded' OR next_nonce = 0),
    CONSTRAINT seeds_committed_before_live CHECK (live_at >= committed_at)
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX seeds_one_live ON fairledger.seeds (session_id) WHERE status = 'live';
CREATE INDEX seeds_by_seal_key ON fairledger.seeds (seal_key_id);
COMMENT ON TABLE  fairledger.seeds IS 'A server seed that is or was in use (or was discarded unused), with its nonce counter in the same row. Never deleted. The fill factor keeps counting within the page.';
COMMENT ON COLUMN fairledger.seeds.session_id IS 'The session it belongs to.';
COMMENT ON COLUMN fairledger.seeds.seed_no IS 'Counts the session''s seeds from 0.';
COMMENT ON COLUMN fairledger.seeds.commitment IS 'SHA-256 of the server seed''s 64 hex characters.';
COMMENT ON COLUMN fairledger.seeds.sealed_seed IS 'Version byte, 24 bytes of nonce, 32 bytes of seed and 16 of tag: XChaCha20-Poly1305. Kept after the reveal too.';
COMMENT ON COLUMN fairledger.seeds.seal_key_id IS 'The key it is sealed under.';
COMMENT ON COLUMN fairledger.seeds.client_seed IS 'The client seed its bets are calculated with; never changes. Null when it never went live.';
COMMENT ON COLUMN fairledger.seeds.client_seed_source IS 'generated: made here; player: set by the caller; kept: carried over by a rotation; application: brought with the seed.';
COMMENT ON COLUMN fairledger.seeds.client_seed_at IS 'When the client seed was first set.';
COMMENT ON COLUMN fairledger.seeds.epoch IS 'The recovery epoch in which it was committed. A bet needs the current one.';
COMMENT ON COLUMN fairledger.seeds.committed_at IS 'When the commitment became durable: before anybody saw it.';
COMMENT ON COLUMN fairledger.seeds.live_at IS 'When it came into use; null when it was discarded without that.';
COMMENT ON COLUMN fairledger.seeds.status IS 'live, then revealed (it has bets) or discarded (it has none).';
COMMENT ON COLUMN fairledger.seeds.next_nonce IS 'The nonce of the next bet, and so the number of bets taken.';
COMMENT ON COLUMN fairledger.seeds.pending IS 'How many of its bets are pending. Ending a seed demands 0.';
COMMENT ON COLUMN fairledger.seeds.retired_at IS 'When it stopped being live.';
COMMENT ON COLUMN fairledger.seeds.retired_by IS 'What ended it.';

CREATE TABLE fairledger.reveals (
    session_id  uuid        NOT NULL,
    seed_no     integer     NOT NULL,
    commitment  bytea       NOT NULL,
    server_seed bytea       NOT NULL CONSTRAINT reveals_server_seed_length CHECK (octet_length(server_seed) = 32),
    revealed_at timestamptz NOT NULL,
    reason      text        NOT NULL CONSTRAINT reveals_reason_check
                            CHECK (reason IN ('rotation', 'client_seed', 'closing', 'idle', 'replaced', 'expiry', 'recovery')),
    CONSTRAINT reveals_pkey PRIMARY KEY (session_id, seed_no),
    CONSTRAINT reveals_seed_fkey FOREIGN KEY (session_id, seed_no) REFERENCES fairledger.seeds (session_id, seed_no),
    CONSTRAINT reveals_match_commitment CHECK (commitment = sha256(encode(server_seed, 'hex')::bytea))
);
COMMENT ON TABLE  fairledger.reveals IS 'Server seeds in clear, once their seed has ended with bets. Only ever inserted.';
COMMENT ON COLUMN fairledger.reveals.session_id IS 'The session of the seed.';
COMMENT ON COLUMN fairledger.reveals.seed_no IS 'Which seed of the session.';
COMMENT ON COLUMN fairledger.reveals.commitment IS 'The seed''s commitment, beside the seed so that the database itself checks that they belong together.';
COMMENT ON COLUMN fairledger.reveals.server_seed IS 'The 32 bytes whose lower-case hex is the server seed.';
COMMENT ON COLUMN fairledger.reveals.revealed_at IS 'When, by the database''s clock.';
COMMENT ON COLUMN fairledger.reveals.reason IS 'What ended the seed.';

CREATE TABLE fairledger.bets (
    session_id     uuid        NOT NULL,
    seed_no        integer     NOT NULL,
    nonce          bigint      NOT NULL CONSTRAINT bets_nonce_range CHECK (nonce BETWEEN 0 AND 9007199254740990),
    bet_ref        text        NOT NULL CONSTRAINT bets_bet_ref_form CHECK (bet_ref ~ '^[A-Za-z0-9._:-]{1,64}$'),
    kind           text        NOT NULL CONSTRAINT bets_kind_check CHECK (kind IN ('played', 'round', 'reservation')),
    game           text        NOT NULL CONSTRAINT bets_game_length CHECK (char_length(game) BETWEEN 1 AND 64),
    params         json        NOT NULL,
    selection      json,
    stake          numeric     CONSTRAINT bets_stake_range CHECK (stake >= 0 AND stake < 1e38 AND scale(stake) <= 18),
    currency       text        CONSTRAINT bets_currency_form CHECK (currency ~ '^[A-Z0-9]{1,16}$'),
    context        json,
    rules_id       text,
    rules_sha256   bytea       CONSTRAINT bets_rules_sha256_length CHECK (octet_length(rules_sha256) = 32),
    floats         integer     CONSTRAINT bets_floats_range CHECK (floats BETWEEN 1 AND 1024),
    taken_at       timestamptz NOT NULL,
    expires_at     timestamptz,
    result         json,
    cursor         integer     CONSTRAINT bets_cursor_range CHECK (cursor >= 0),
    signature      bytea       CONSTRAINT bets_signature_length CHECK (octet_length(signature) = 64),
    signing_key_no integer,
    CONSTRAINT bets_pkey PRIMARY KEY (session_id, seed_no, nonce),
    CONSTRAINT bets_bet_ref_key UNIQUE (session_id, bet_ref),
    CONSTRAINT bets_result_when_played CHECK ((kind = 'played') = (result IS NOT NULL) AND (kind = 'played') = (cursor IS NOT NULL)),
    CONSTRAINT bets_expiry_of_reservations CHECK ((kind = 'reservation') = (expires_at IS NOT NULL)),
    CONSTRAINT bets_rules_of_reservations CHECK ((rules_id IS NULL) = (rules_sha256 IS NULL) AND (rules_id IS NULL) = (floats IS NULL)
        AND (kind = 'reservation' OR rules_id IS NULL)),
    CONSTRAINT bets_signature_with_key CHECK ((signature IS NULL) = (signing_key_no IS NULL) AND (signature IS NULL OR result IS NOT NULL))
);
COMMENT ON TABLE  fairledger.bets IS 'Every bet ever taken, with all that was bound when its nonce was handed out. Only ever inserted. Has no foreign key to seeds: the counter''s row is updated in the same transaction, and seeds are never deleted.';
COMMENT ON COLUMN fairledger.bets.session_id IS 'The session it was taken in.';
COMMENT ON COLUMN fairledger.bets.seed_no IS 'The seed it was taken under.';
COMMENT ON COLUMN fairledger.bets.nonce IS 'The nonce it consumed, once for ever.';
COMMENT ON COLUMN fairledger.bets.bet_ref IS 'The caller''s own name for it; the same name again finds the same bet.';
COMMENT ON COLUMN fairledger.bets.kind IS 'played: result at once; round: result concealed until the round ends; reservation: result owed by an outside game.';
COMMENT ON COLUMN fairledger.bets.game IS 'A game of GFS/1.0, an outside game (x-...), or unbound.';
COMMENT ON COLUMN fairledger.bets.params IS 'The game''s parameters with defaults filled in, as canonical JSON.';
COMMENT ON COLUMN fairledger.bets.selection IS 'What the player chose, as canonical JSON.';
COMMENT ON COLUMN fairledger.bets.stake IS 'Amount staked.';
COMMENT ON COLUMN fairledger.bets.currency IS 'Currency of stake and payout.';
COMMENT ON COLUMN fairledger.bets.context IS 'Whatever else the engine bound, as canonical JSON.';
COMMENT ON COLUMN fairledger.bets.rules_id IS 'Name of the outside game''s rules.';
COMMENT ON COLUMN fairledger.bets.rules_sha256 IS 'SHA-256 of the outside game''s rules.';
COMMENT ON COLUMN fairledger.bets.floats IS 'How many floats the outside game was given.';
COMMENT ON COLUMN fairledger.bets.taken_at IS 'When the nonce was handed out: later than the seed''s committed_at by a microsecond at least.';
COMMENT ON COLUMN fairledger.bets.expires_at IS 'Until when a reservation may be recorded.';
COMMENT ON COLUMN fairledger.bets.result IS 'The result as canonical JSON, when played at once.';
COMMENT ON COLUMN fairledger.bets.cursor IS 'The highest digest index used, when played at once.';
COMMENT ON COLUMN fairledger.bets.signature IS 'Ed25519 over the record''s payload, when played at once and a signing key was set.';
COMMENT ON COLUMN fairledger.bets.signing_key_no IS 'The key of the signature.';

CREATE TABLE fairledger.pending (
    session_id  uuid        NOT NULL,
    seed_no     integer     NOT NULL,
    nonce       bigint      NOT NULL,
    kind        text        NOT NULL CONSTRAINT pending_kind_check CHECK (kind IN ('round', 'reservation')),
    expires_at  timestamptz,
    next_step   integer     NOT NULL DEFAULT 0 CONSTRAINT pending_next_step_range CHECK (next_step >= 0),
    cards_shown integer     NOT NULL DEFAULT 0 CONSTRAINT pending_cards_shown_range CHECK (cards_shown >= 0),
    mine_shown  boolean     NOT NULL DEFAULT false,
    CONSTRAINT pending_pkey PRIMARY KEY (session_id, seed_no, nonce),
    CONSTRAINT pending_expiry_of_reservations CHECK ((kind = 'reservation') = (expires_at IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX pending_expiring ON fairledger.pending (expires_at) WHERE expires_at IS NOT NULL;
COMMENT ON TABLE  fairledger.pending IS 'Bets whose result is concealed or owed. The one end that wins (record, close or void) deletes the row.';
COMMENT ON COLUMN fairledger.pending.session_id IS 'The bet''s session.';
COMMENT ON COLUMN fairledger.pending.seed_no IS 'The bet''s seed.';
COMMENT ON COLUMN fairledger.pending.nonce IS 'The bet''s nonce.';
COMMENT ON COLUMN fairledger.pending.kind IS 'round or reservation.';
COMMENT ON COLUMN fairledger.pending.expires_at IS 'When a reservation is void, whether or not it was swept.';
COMMENT ON COLUMN fairledger.pending.next_step IS 'Index of the round''s next step.';
COMMENT ON COLUMN fairledger.pending.cards_shown IS 'How many cards of the round''s deck its steps have disclosed.';
COMMENT ON COLUMN fairledger.pending.mine_shown IS 'A step disclosed a mine: the round can only end as lost.';

CREATE TABLE fairledger.steps (
    session_id uuid        NOT NULL,
    seed_no    integer     NOT NULL,
    nonce      bigint      NOT NULL,
    step_index integer     NOT NULL CONSTRAINT steps_index_range CHECK (step_index >= 0),
    step       json        NOT NULL,
    disclose   json,
    disclosed  json,
    stepped_at timestamptz NOT NULL,
    CONSTRAINT steps_pkey PRIMARY KEY (session_id, seed_no, nonce, step_index),
    CONSTRAINT steps_bet_fkey FOREIGN KEY (session_id, seed_no, nonce) REFERENCES fairledger.bets (session_id, seed_no, nonce),
    CONSTRAINT steps_disclosed_as_asked CHECK ((disclose IS NULL) = (disclosed IS NULL))
);
COMMENT ON TABLE  fairledger.steps IS 'What happened in a round, in order, each stored before what it discloses is shown. Only ever inserted.';
COMMENT ON COLUMN fairledger.steps.session_id IS 'The round''s session.';
COMMENT ON COLUMN fairledger.steps.seed_no IS 'The round''s seed.';
COMMENT ON COLUMN fairledger.steps.nonce IS 'The round''s nonce.';
COMMENT ON COLUMN fairledger.steps.step_index IS 'Counts the round''s steps from 0 without gaps.';
COMMENT ON COLUMN fairledger.steps.step IS 'The engine''s own description, as canonical JSON.';
COMMENT ON COLUMN fairledger.steps.disclose IS 'What the engine asked to be shown, as canonical JSON.';
COMMENT ON COLUMN fairledger.steps.disclosed IS 'What was shown for it, as canonical JSON.';
COMMENT ON COLUMN fairledger.steps.stepped_at IS 'When, by the database''s clock.';

CREATE TABLE fairledger.outcomes (
    session_id     uuid        NOT NULL,
    seed_no        integer     NOT NULL,
    nonce          bigint      NOT NULL,
    round_outcome  text        CONSTRAINT outcomes_round_outcome_check CHECK (round_outcome IN ('cashout', 'lost', 'forfeit', 'abandoned')),
    result         json        NOT NULL,
    cursor         integer     NOT NULL CONSTRAINT outcomes_cursor_range CHECK (cursor >= 0),
    signature      bytea       CONSTRAINT outcomes_signature_length CHECK (octet_length(signature) = 64),
    signing_key_no integer,
    recorded_at    timestamptz NOT NULL,
    CONSTRAINT outcomes_pkey PRIMARY KEY (session_id, seed_no, nonce),
    CONSTRAINT outcomes_bet_fkey FOREIGN KEY (session_id, seed_no, nonce) REFERENCES fairledger.bets (session_id, seed_no, nonce),
    CONSTRAINT outcomes_signature_with_key CHECK ((signature IS NULL) = (signing_key_no IS NULL))
);
COMMENT ON TABLE  fairledger.outcomes IS 'The result of a bet that was pending, once it has one. Only ever inserted.';
COMMENT ON COLUMN fairledger.outcomes.session_id IS 'The bet''s session.';
COMMENT ON COLUMN fairledger.outcomes.seed_no IS 'The bet''s seed.';
COMMENT ON COLUMN fairledger.outcomes.nonce IS 'The bet''s nonce.';
COMMENT ON COLUMN fairledger.outcomes.round_outcome IS 'How a round ended; null for a reservation.';
COMMENT ON COLUMN fairledger.outcomes.result IS 'The result as canonical JSON.';
COMMENT ON COLUMN fairledger.outcomes.cursor IS 'The highest digest index used; 0 where the ledger does not know the game.';
COMMENT ON COLUMN fairledger.outcomes.signature IS 'Ed25519 over the record''s payload, when a signing key was set.';
COMMENT ON COLUMN fairledger.outcomes.signing_key_no IS 'The key of the signature.';
COMMENT ON COLUMN fairledger.outcomes.recorded_at IS 'When, by the database''s clock.';

CREATE TABLE fairledger.voids (
    session_id uuid        NOT NULL,
    seed_no    integer     NOT NULL,
    nonce      bigint      NOT NULL,
    reason     text        NOT NULL CONSTRAINT voids_reason_length CHECK (char_length(reason) BETWEEN 1 AND 200),
    voided_at  timestamptz NOT NULL,
    CONSTRAINT voids_pkey PRIMARY KEY (session_id, seed_no, nonce),
    CONSTRAINT voids_bet_fkey FOREIGN KEY (session_id, seed_no, nonce) REFERENCES fairledger.bets (session_id, seed_no, nonce)
);
COMMENT ON TABLE  fairledger.voids IS 'Pending bets that ended without a result. Their nonce stays consumed. Only ever inserted.';
COMMENT ON COLUMN fairledger.voids.session_id IS 'The bet''s session.';
COMMENT ON COLUMN fairledger.voids.seed_no IS 'The bet''s seed.';
COMMENT ON COLUMN fairledger.voids.nonce IS 'The bet''s nonce.';
COMMENT ON COLUMN fairledger.voids.reason IS 'The engine''s reason, or expired, abandoned or recovery.';
COMMENT ON COLUMN fairledger.voids.voided_at IS 'When, by the database''s clock.';

CREATE TABLE fairledger.settlements (
    session_id uuid        NOT NULL,
    seed_no    integer     NOT NULL,
    nonce      bigint      NOT NULL,
    payout     numeric     NOT NULL CONSTRAINT settlements_payout_range CHECK (payout >= 0 AND payout < 1e38 AND scale(payout) <= 18),
    outcome    text        CONSTRAINT settlements_outcome_length CHECK (char_length(outcome) BETWEEN 1 AND 64),
    displayed  json,
    rules      json,
    settled_at timestamptz NOT NULL,
    CONSTRAINT settlements_pkey PRIMARY KEY (session_id, seed_no, nonce),
    CONSTRAINT settlements_bet_fkey FOREIGN KEY (session_id, seed_no, nonce) REFERENCES fairledger.bets (session_id, seed_no, nonce)
);
COMMENT ON TABLE  fairledger.settlements IS 'What was paid for a recorded bet and what the player was shown. Only ever inserted.';
COMMENT ON COLUMN fairledger.settlements.session_id IS 'The bet''s session.';
COMMENT ON COLUMN fairledger.settlements.seed_no IS 'The bet''s seed.';
COMMENT ON COLUMN fairledger.settlements.nonce IS 'The bet''s nonce.';
COMMENT ON COLUMN fairledger.settlements.payout IS 'Amount paid, in the bet''s currency.';
COMMENT ON COLUMN fairledger.settlements.outcome IS 'The engine''s word for it, such as win.';
COMMENT ON COLUMN fairledger.settlements.displayed IS 'What the player was shown, as canonical JSON.';
COMMENT ON COLUMN fairledger.settlements.rules IS 'The pay table or rules applied, as canonical JSON.';
COMMENT ON COLUMN fairledger.settlements.settled_at IS 'When, by the database''s clock.';

CREATE TABLE fairledger.api_tokens (
    token_id   text        NOT NULL CONSTRAINT api_tokens_token_id_form CHECK (token_id ~ '^[a-z0-9]{12}$'),
    token_hash bytea       NOT NULL CONSTRAINT api_tokens_token_hash_length CHECK (octet_length(token_hash) = 32),
    scopes     text[]      NOT NULL CONSTRAINT api_tokens_scopes_check
                           CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['relay', 'engine', 'dispute', 'admin']),
    label      text        CONSTRAINT api_tokens_label_length CHECK (char_length(label) BETWEEN 1 AND 64),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT api_tokens_pkey PRIMARY KEY (token_id),
    CONSTRAINT api_tokens_token_hash_key UNIQUE (token_hash)
);
COMMENT ON TABLE  fairledger.api_tokens IS 'Bearer tokens of the HTTP API, by their hashes only.';
COMMENT ON COLUMN fairledger.api_tokens.token_id IS 'Public name for listing and revoking.';
COMMENT ON COLUMN fairledger.api_tokens.token_hash IS 'SHA-256 of the token''s text, which has 256 random bits.';
COMMENT ON COLUMN fairledger.api_tokens.scopes IS 'What it may do; admin includes the others.';
COMMENT ON COLUMN fairledger.api_tokens.label IS 'The operator''s note.';
COMMENT ON COLUMN fairledger.api_tokens.created_at IS 'When it was made.';
COMMENT ON COLUMN fairledger.api_tokens.expires_at IS 'From when it is refused; null for never.';
COMMENT ON COLUMN fairledger.api_tokens.revoked_at IS 'When it was revoked; null while valid.';

CREATE TABLE fairledger.address_quota (
    address_hash      bytea       NOT NULL CONSTRAINT address_quota_hash_length CHECK (octet_length(address_hash) = 32),
    window_started_at timestamptz NOT NULL,
    sessions          integer     NOT NULL CONSTRAINT address_quota_sessions_range CHECK (sessions > 0),
    CONSTRAINT address_quota_pkey PRIMARY KEY (address_hash)
) WITH (fillfactor = 80);
CREATE INDEX address_quota_old ON fairledger.address_quota (window_started_at);
COMMENT ON TABLE  fairledger.address_quota IS 'How many sessions one address started in its window; rows of past windows are swept.';
COMMENT ON COLUMN fairledger.address_quota.address_hash IS 'A keyed hash of the address (IPv6: of its /64).';
COMMENT ON COLUMN fairledger.address_quota.window_started_at IS 'When the window began.';
COMMENT ON COLUMN fairledger.address_quota.sessions IS 'Sessions started in it.';

-- One bet with everything that is known of it. Owned by the owner: whoever may select from it needs no right to the tables.
-- statement_timestamp(), not clock_timestamp(): a view with a volatile function is planned by itself, without its caller's ORDER BY and
-- LIMIT, so that each page would read and sort all bets. What was expired when a statement began is expired for ever; whoever acts on
-- the contrary is guarded by the row that it changes.
CREATE VIEW fairledger.bet_details AS
SELECT b.session_id, b.seed_no, b.nonce, b.bet_ref, b.kind, b.game, b.params::text AS params, b.selection::text AS selection, b.stake, b.currency,
       b.context::text AS context, b.rules_id, b.rules_sha256, b.floats, b.taken_at,
       s.commitment, s.client_seed, r.server_seed, x.player_ref,
       coalesce(b.result, o.result)::text AS result, coalesce(b.cursor, o.cursor) AS cursor,
       coalesce(b.signature, o.signature) AS signature, k.signer, o.recorded_at, o.round_outcome,
       CASE WHEN b.kind = 'played' OR o.nonce IS NOT NULL THEN 'recorded'
            WHEN v.nonce IS NOT NULL THEN 'void'
            WHEN p.expires_at <= statement_timestamp() THEN 'void'
            WHEN p.nonce IS NOT NULL THEN 'pending'
       END AS status,
       CASE WHEN v.nonce IS NOT NULL THEN v.reason
            WHEN p.expires_at <= statement_timestamp() THEN 'expired'
       END AS void_reason,
       coalesce(v.voided_at, CASE WHEN p.expires_at <= statement_timestamp() THEN p.expires_at END) AS voided_at,
       b.expires_at, p.next_step, p.cards_shown,
       t.payout, t.outcome AS settlement_outcome, t.displayed::text AS displayed, t.rules::text AS settlement_rules, t.settled_at
FROM fairledger.bets b
JOIN fairledger.seeds s USING (session_id, seed_no)
JOIN fairledger.sessions x USING (session_id)
LEFT JOIN fairledger.reveals r USING (session_id, seed_no)
LEFT JOIN fairledger.pending p USING (session_id, seed_no, nonce)
LEFT JOIN fairledger.outcomes o USING (session_id, seed_no, nonce)
LEFT JOIN fairledger.voids v USING (session_id, seed_no, nonce)
LEFT JOIN fairledger.settlements t USING (session_id, seed_no, nonce)
LEFT JOIN fairledger.signing_keys k ON k.signing_key_no = coalesce(b.signing_key_no, o.signing_key_no);
COMMENT ON VIEW fairledger.bet_details IS 'A bet with its seed''s public side, its end, its settlement and its state as of now: an expired reservation is void whether or not it was swept.';

-- What dispute teams see. No sealed seed, no token, no result of a pending bet (which is stored nowhere anyway).
CREATE SCHEMA fairledger_dispute;
COMMENT ON SCHEMA fairledger_dispute IS 'Read-only views for dispute teams.';

CREATE VIEW fairledger_dispute.bets WITH (security_barrier = true) AS
SELECT session_id, encode(commitment, 'hex') AS commitment, nonce, seed_no, bet_ref, player_ref, kind, status, game, params, selection, stake, currency, context,
       rules_id, encode(rules_sha256, 'hex') AS rules_sha256, floats, client_seed, encode(server_seed, 'hex') AS server_seed, taken_at, result, cursor,
       encode(signature, 'hex') AS signature, encode(signer, 'hex') AS signer, recorded_at, round_outcome, void_reason, voided_at,
       payout, settlement_outcome, displayed, settlement_rules, settled_at
FROM fairledger.bet_details;
COMMENT ON VIEW fairledger_dispute.bets IS 'Every bet with its outcome, void and settlement; server_seed once revealed.';

CREATE VIEW fairledger_dispute.sessions WITH (security_barrier = true) AS
SELECT session_id, player_ref, status, created_at, active_at, closed_at FROM fairledger.sessions;
COMMENT ON VIEW fairledger_dispute.sessions IS 'Every session.';

CREATE VIEW fairledger_dispute.seeds WITH (security_barrier = true) AS
SELECT s.session_id, s.seed_no, encode(s.commitment, 'hex') AS commitment, s.status, s.client_seed, s.client_seed_source, s.client_seed_at, s.committed_at,
       s.live_at, s.next_nonce AS bets, s.pending, s.retired_at, s.retired_by, r.revealed_at, encode(r.server_seed, 'hex') AS server_seed
FROM fairledger.seeds s LEFT JOIN fairledger.reveals r USING (session_id, seed_no)
UNION ALL
SELECT session_id, seed_no, encode(commitment, 'hex'), 'next', NULL, NULL, NULL, committed_at, NULL, 0, 0, NULL, NULL, NULL, NULL FROM fairledger.next_seeds;
COMMENT ON VIEW fairledger_dispute.seeds IS 'Every seed, the committed next one included; server_seed once revealed.';

CREATE VIEW fairledger_dispute.steps WITH (security_barrier = true) AS
SELECT session_id, seed_no, nonce, step_index, step::text AS step, disclose::text AS disclose, disclosed::text AS disclosed, stepped_at FROM fairledger.steps;
COMMENT ON VIEW fairledger_dispute.steps IS 'Every step of every round with what it disclosed.';

CREATE VIEW fairledger_dispute.recoveries WITH (security_barrier = true) AS
SELECT epoch, recovered_at, reason, findings::text AS findings FROM fairledger.recoveries;
COMMENT ON VIEW fairledger_dispute.recoveries IS 'Every recovery.';
