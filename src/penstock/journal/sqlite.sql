-- The log of a durable broker, format 1. A change of this file is a new format number and a migration beside it.

-- name, value: format, created_at.
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- One row for each stream and commit. position = stream << 40 | offset of the first message, so that a stream's chunks lie
-- together and in order. plain is the priority of all messages when none has a time to live or delivery time, else NULL.
-- crc covers body and position. Small columns come first: a scan of them does not read the bodies.
CREATE TABLE chunks (
    position INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,
    size INTEGER NOT NULL,
    published_at INTEGER NOT NULL,
    plain INTEGER,
    keyed INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    body BLOB NOT NULL
);

-- One row for each commit: its event records. first is the offset of the first event.
CREATE TABLE events (
    first INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,
    at INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    body BLOB NOT NULL
);

-- The state of all queues as of event number `events`.
CREATE TABLE checkpoint (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    events INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    body BLOB NOT NULL
);
