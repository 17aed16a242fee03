-- The token ledger: issuing keys with their windows, and the tokens spent under them.
--
-- Rules that these tables keep, besides those of V1:
--   * a key goes open, closed, swept, one way, and its name is never used again;
--   * a spend is forgotten only by its own rollback, or with the whole partition of a key that is swept;
--   * no default partition: under a key without a partition nothing can be spent;
--   * only the owner makes and drops partitions, through two functions that look at the key themselves.

CREATE TABLE fairledger.token_keys (
    key_no       integer     NOT NULL CONSTRAINT token_keys_key_no_range CHECK (key_no > 0),
    key_id       text        NOT NULL CONSTRAINT token_keys_key_id_form CHECK (key_id ~ '^[A-Za-z0-9._-]{1,64}$'),
    redeem_from  timestamptz NOT NULL,
    redeem_until timestamptz NOT NULL,
    state        text        NOT NULL DEFAULT 'open' CONSTRAINT token_keys_state_check CHECK (state IN ('open', 'closed', 'swept')),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at    timestamptz,
    swept_at     timestamptz,
    epoch        integer     NOT NULL CONSTRAINT token_keys_epoch_range CHECK (epoch >= 0),
    CONSTRAINT token_keys_pkey PRIMARY KEY (key_no),
    CONSTRAINT token_keys_key_id_key UNIQUE (key_id),
    CONSTRAINT token_keys_window CHECK (redeem_from < redeem_until AND isfinite(redeem_from) AND isfinite(redeem_until)),
    CONSTRAINT token_keys_closed_with_time CHECK (state <> 'closed' OR closed_at IS NOT NULL),
    CONSTRAINT token_keys_open_without_end CHECK (state <> 'open' OR closed_at IS NULL),
    CONSTRAINT token_keys_swept_with_time CHECK ((state = 'swept') = (swept_at IS NOT NULL))
);
COMMENT ON TABLE  fairledger.token_keys IS 'Keys that tokens are issued under. Never deleted: a key_id that was used once is used for ever.';
COMMENT ON COLUMN fairledger.token_keys.key_no IS 'Short name used by spends; counted up under a lock, never used again.';
COMMENT ON COLUMN fairledger.token_keys.key_id IS 'The issuer''s name for the key.';
COMMENT ON COLUMN fairledger.token_keys.redeem_from IS 'Begin of its window: its tokens are accepted from this instant.';
COMMENT ON COLUMN fairledger.token_keys.redeem_until IS 'End of its window: its tokens are accepted before this instant. May only be moved earlier.';
COMMENT ON COLUMN fairledger.token_keys.state IS 'open; closed: nothing is accepted from then on; swept: its spends are forgotten or about to be. One way.';
COMMENT ON COLUMN fairledger.token_keys.created_at IS 'When it was registered, by the database''s clock.';
COMMENT ON COLUMN fairledger.token_keys.closed_at IS 'When an operator closed it; null if its window ended by itself.';
COMMENT ON COLUMN fairledger.token_keys.swept_at IS 'When it was marked swept.';
COMMENT ON COLUMN fairledger.token_keys.epoch IS 'The recovery epoch in which it was registered.';

-- One row a token spent, so a row is made small: both halves of the key as bytes, the key by number, and the columns in the order in
-- which none is padded (8, 4, 16 bytes, then the one of variable length with a header of one byte). A row with a nonce of 32 bytes
-- takes 92 bytes in the table with its header and line pointer, and 52 in the index before free space: `cargo bench --bench ledger`
-- measures it. There is no second index, and no foreign key to token_keys: checking it would lock the key's row for every
-- spend, and the statement that spends reads that row anyway.
CREATE TABLE fairledger.spends (
    expires_at timestamptz NOT NULL,
    key_no     integer     NOT NULL,
    spend_id   uuid        NOT NULL,
    nonce      bytea       NOT NULL CONSTRAINT spends_nonce_length CHECK (octet_length(nonce) BETWEEN 16 AND 64),
    CONSTRAINT spends_pkey PRIMARY KEY (key_no, nonce)
) PARTITION BY LIST (key_no);
COMMENT ON TABLE  fairledger.spends IS 'Tokens that are spent. A row names no one: no time of spending, no address. One partition a key, in the schema fairledger_spends.';
COMMENT ON COLUMN fairledger.spends.expires_at IS 'Its key''s redeem_until: from then on the row cannot matter. The same for every row of the key.';
COMMENT ON COLUMN fairledger.spends.key_no IS 'The key.';
COMMENT ON COLUMN fairledger.spends.spend_id IS 'Fresh randomness of the spender for this admission: who sends it again asks about the same spend.';
COMMENT ON COLUMN fairledger.spends.nonce IS 'The token''s nonce.';

-- Nobody but the owner gets rights to this schema: whoever may spend does so through fairledger.spends. For a role that may not read the
-- partition, PostgreSQL also leaves the values out of what it logs about one.
CREATE SCHEMA fairledger_spends;
COMMENT ON SCHEMA fairledger_spends IS 'The partitions of fairledger.spends, key_<key_no>.';

-- A guard besides the WHERE clauses of the service, against whoever else may update: what is one way stays one way.
CREATE FUNCTION fairledger.token_keys_one_way() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (NEW.key_no, NEW.key_id, NEW.redeem_from, NEW.created_at, NEW.epoch)
           IS DISTINCT FROM (OLD.key_no, OLD.key_id, OLD.redeem_from, OLD.created_at, OLD.epoch)
       OR NEW.redeem_until > OLD.redeem_until
       OR (OLD.state <> 'open' AND NEW.state = 'open')
       OR (OLD.state = 'swept' AND NEW.state <> 'swept')
       OR (OLD.closed_at IS NOT NULL AND NEW.closed_at IS DISTINCT FROM OLD.closed_at)
       OR (OLD.swept_at IS NOT NULL AND NEW.swept_at IS DISTINCT FROM OLD.swept_at)
    THEN
        RAISE EXCEPTION 'a token key goes open, closed, swept, and its window only ends earlier' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION fairledger.token_keys_one_way() IS 'Refuses changes of a token key that are not one way.';
CREATE TRIGGER token_keys_one_way BEFORE UPDATE ON fairledger.token_keys FOR EACH ROW EXECUTE FUNCTION fairledger.token_keys_one_way();

-- A table of its own, then ATTACH: that takes a lock on spends which no spend conflicts with. CREATE TABLE ... PARTITION OF would wait
-- behind every open spend and queue the later ones behind itself.
CREATE FUNCTION fairledger.attach_spends_partition(for_key_no integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := format('fairledger_spends.%I', 'key_' || for_key_no);
BEGIN
    PERFORM 1 FROM fairledger.token_keys WHERE key_no = for_key_no AND state = 'open';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'key % is not open', for_key_no USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    EXECUTE format('CREATE TABLE %s (LIKE fairledger.spends INCLUDING ALL)', name);
    EXECUTE format('COMMENT ON TABLE %s IS %L', name, 'Spends under one key.');
    EXECUTE format('ALTER TABLE fairledger.spends ATTACH PARTITION %s FOR VALUES IN (%s)', name, for_key_no);
END
$$;
COMMENT ON FUNCTION fairledger.attach_spends_partition(integer) IS 'Makes the partition of an open key. Runs in the transaction that registers the key.';

-- The mark must be committed and every transaction that could have seen the key open must have ended. A transaction that this one sees
-- no mark of its own in saw it committed; then it takes a transaction id. Whoever saw the key open and may still write has a lower id
-- (or took its lock on spends before it looked), so once no lower id runs, nobody is left. Dropping a partition locks spends: that wait is
-- cut off by the lock timeout below, and whoever queued behind it goes on.
CREATE FUNCTION fairledger.drop_spends_partition(of_key_no integer, wait_ms integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    name  text := format('fairledger_spends.%I', 'key_' || of_key_no);
    naps  integer := least(greatest(wait_ms, 0), 5000) / 10;
    mine  xid8;
    freed bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'dropping a partition needs a READ COMMITTED transaction that has not written anything'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM 1 FROM fairledger.token_keys WHERE key_no = of_key_no AND state = 'swept';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'key % is not swept', of_key_no USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    mine := pg_current_xact_id();
    -- Every look takes a new snapshot. Its xmin is at most our own id, and equals it when no lower one runs.
    WHILE pg_snapshot_xmin(pg_current_snapshot()) < mine LOOP
        -- Counted, not timed: a clock that steps back must not make this longer.
        IF naps = 0 THEN
            RETURN NULL;
        END IF;
        naps := naps - 1;
        PERFORM pg_sleep(0.01);
    END LOOP;
    BEGIN
        IF to_regclass(name) IS NULL THEN
            RETURN 0;
        END IF;
        -- In the order of every spend. Whoever spends queues behind the first lock; the second is not waited for, since only a vacuum
        -- or a reader of the partition itself can hold one then, and those take their time.
        LOCK TABLE ONLY fairledger.spends IN ACCESS EXCLUSIVE MODE;
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', name);
        freed := pg_total_relation_size(to_regclass(name));
        EXECUTE format('DROP TABLE %s', name);
        RETURN freed;
    EXCEPTION WHEN lock_not_available THEN
        RETURN NULL;
    END;
END
$$;
COMMENT ON FUNCTION fairledger.drop_spends_partition(integer, integer) IS
    'Drops the partition of a swept key and gives the bytes freed; null when a transaction that could have seen the key open, or a lock, was still in the way after wait_ms.';

REVOKE ALL ON FUNCTION fairledger.token_keys_one_way(), fairledger.attach_spends_partition(integer),
    fairledger.drop_spends_partition(integer, integer) FROM PUBLIC;
