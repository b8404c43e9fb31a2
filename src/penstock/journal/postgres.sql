-- Logs in PostgreSQL, format 1. A change of this file is a new format number and a step beside it, in postgres_connection.py.
-- `log` is in every key: a database may hold several logs. The columns of chunks and events are those of sqlite.sql, with the same
-- checksums, so that a log can be copied in both directions.

-- name, value: first_event, removed_until:STREAM; for log 0 the format.
CREATE TABLE meta (log int NOT NULL, name text NOT NULL, value bigint NOT NULL, PRIMARY KEY (log, name));

-- One row for each log: who owns it, and under which epoch. Every commit checks the epoch with FOR SHARE; a takeover raises it.
-- confirmed: how many events are confirmed at least. beat: when the owner was last alive, by the clock of the database.
CREATE TABLE logs (
    log int PRIMARY KEY,
    epoch bigint NOT NULL,
    node text NOT NULL,
    address text NOT NULL,
    version text NOT NULL,
    since timestamptz NOT NULL,
    beat timestamptz NOT NULL,
    pid int NOT NULL,
    backend_start timestamptz NOT NULL,
    confirmed bigint NOT NULL,
    incarnation uuid NOT NULL DEFAULT gen_random_uuid()
) WITH (fillfactor = 50);

-- One row for each stream and commit. event is the first event of the commit.
CREATE TABLE chunks (
    log int NOT NULL,
    position bigint NOT NULL,
    count int NOT NULL,
    size bigint NOT NULL,
    published_at bigint NOT NULL,
    plain smallint,
    keyed smallint NOT NULL,
    event bigint NOT NULL,
    crc bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (log, position)
);
ALTER TABLE chunks ALTER COLUMN body SET STORAGE EXTERNAL;

-- One row for each commit: its event records. A commit whose answer was lost is found by epoch and commit_id.
CREATE TABLE events (
    log int NOT NULL,
    first bigint NOT NULL,
    count int NOT NULL,
    at bigint NOT NULL,
    epoch bigint NOT NULL,
    commit_id bigint NOT NULL,
    crc bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (log, first)
);
ALTER TABLE events ALTER COLUMN body SET STORAGE EXTERNAL;

-- The state of all queues as of event number `events`, in parts, as a value may have a gigabyte. crc covers the whole.
CREATE TABLE checkpoints (
    log int NOT NULL,
    part int NOT NULL,
    parts int NOT NULL,
    events bigint NOT NULL,
    crc bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (log, part)
);

-- The nodes that share a log, as they report, for people: who owns it is in logs. beat: when it last reported.
CREATE TABLE nodes (
    log int NOT NULL,
    node text NOT NULL,
    address text NOT NULL,
    version text NOT NULL,
    state text NOT NULL,
    since timestamptz NOT NULL,
    beat timestamptz NOT NULL,
    PRIMARY KEY (log, node)
) WITH (fillfactor = 50);

-- What lies beside the log as a file in a data directory: cursors, tokens, the last configuration of a router.
CREATE TABLE files (
    log int NOT NULL,
    name text NOT NULL,
    changed bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (log, name)
);

-- Rows of Spark writes that wait for their commit, in pieces: name is that of a file under `staged` in a data directory. info is
-- what is known of a part, in its first piece.
CREATE TABLE staged (
    log int NOT NULL,
    name text NOT NULL,
    piece int NOT NULL,
    info bytea,
    body bytea NOT NULL,
    PRIMARY KEY (log, name, piece)
);
ALTER TABLE staged ALTER COLUMN body SET STORAGE EXTERNAL;
