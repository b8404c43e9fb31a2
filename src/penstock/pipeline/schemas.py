"""The columns of all tables that the pipeline reads and writes, with Spark types. Timestamps are UTC, in microseconds."""

from __future__ import annotations

MESSAGES = (
    "stream string not null, offset bigint not null, message_id string not null, key string, value binary not null, "
    "attributes map<string,string>, priority tinyint not null, publish_time timestamp not null, expires_at timestamp, "
    "partition int not null"
)

EVENTS = (
    "offset bigint not null, at timestamp not null, kind string not null, stream string, subscription string, "
    "message_offset bigint, message_id string, attempt int, consumer string, detail map<string,string>"
)

DEAD_LETTERS = (
    "offset bigint not null, at timestamp not null, stream string, subscription string, message_offset bigint not null, "
    "message_id string, key string, value binary, attributes map<string,string>, publish_time timestamp, attempt int, "
    "reason string not null, cause string, target string, error string"
)

LIFECYCLE = (
    "stream string not null, subscription string not null, message_offset bigint not null, message_id string, "
    "published_at timestamp, first_delivered_at timestamp, settled_at timestamp, updated_at timestamp not null, "
    "attempts int not null, nacks int not null, expiries int not null, consumer string, wait_ms double, processing_ms double, "
    "outcome string not null, is_late boolean not null, event_offset bigint not null"
)
"""One row for each life of a message in a subscription. `outcome`: acked, dead_lettered, dropped, or open if the watermark has
passed. `updated_at` and `event_offset` are those of the last event. `is_late`: the beginning was dropped before the end came."""

METRICS = (
    "window_start timestamp not null, window_end timestamp not null, stream string not null, subscription string, "
    "consumer string, published bigint not null, delivered bigint not null, acked bigint not null, nacked bigint not null, "
    "expired bigint not null, dead_lettered bigint not null, dropped bigint not null, redelivered bigint not null, "
    "published_per_second double not null, delivered_per_second double not null, acked_per_second double not null, "
    "wait_p50_ms double, wait_p95_ms double, wait_p99_ms double, "
    "processing_p50_ms double, processing_p95_ms double, processing_p99_ms double, "
    "redelivery_ratio double, dead_letter_ratio double, error_ratio double, oldest_age_ms double"
)
"""One row for each window, stream, subscription and consumer; publishes have no subscription."""

LEVELS = (
    "window_start timestamp not null, window_end timestamp not null, kind string not null, name string not null, priority int, "
    "ready bigint not null, ready_max bigint not null, in_flight bigint not null, delayed bigint not null, dead bigint not null, "
    "oldest_age_ms double, utilisation double, retries bigint not null, rate_limit_waits bigint not null, open_ms double not null"
)
"""One row for each window and each queue, subscription, pool and target of a router; and for each priority with messages."""

LEVELS_STREAM = "_penstock.levels"

METRICS_STREAM = "_penstock.metrics"

TRIAGE = (
    "at timestamp not null, id string not null, stream string not null, subscription string not null, reason string not null, "
    "error string not null, target string not null, status int not null, shape string not null, version string not null, "
    "count bigint not null, first_at timestamp not null, last_at timestamp not null, samples string not null, "
    "example string not null, action string not null, condition string not null"
)
"""One row for each group of dead letters that a triage at `at` found. `samples`: ids of messages, separated by spaces."""

TRIAGE_STREAM = "_penstock.triage"
