"""Every option of the server, once: the fields of `Settings` are the table.

Flags, environment variables, keys of the file, the help, the output of `penstock config` and the checked table in
docs/configuration.md are all made from it. `check_together` refuses values that are right alone and wrong together. No option is
a secret: secrets are kept in files, and an option names the file.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.config.values import (
    BINDING,
    FLAG,
    HOST,
    HOST_PATTERN,
    JOURNAL,
    JWKS,
    ORIGIN,
    PATH,
    PLACES,
    PORT,
    PROJECT,
    REDIS,
    TARGET_PATTERN,
    TOPIC_PREFIX,
    URL,
    WORD,
    ValueType,
    choice,
    duration,
    number,
    several,
    size,
    whole,
)
from penstock.errors import InvalidArgument
from penstock.values.message import DEFAULT_PRIORITY
from penstock.values.policy import MAX_COUNT, WEEK_SECONDS, QueueConfig, RetryPolicy
from penstock.values.projects import DEFAULT_PROJECT

Label = Callable[[str], str]
JWT_ISSUER = "signal-hub"
JWT_MAX_AGE = 86_400
_JWT_KEYS = ("hub_jwt_secret_file", "hub_jwt_key_file", "hub_jwks_url")
_JWT_CHECKS = {"hub_jwt_issuer": JWT_ISSUER, "hub_jwt_audience": None, "hub_jwt_max_age": JWT_MAX_AGE}
"""The checks of a token beside its signature, and the values that mean they are not set."""


ENVIRONMENT_PREFIX = "PENSTOCK_"
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table."""

    name: str
    kind: ValueType[Any]  # each option has its own
    key: str
    """Its table and key in the file: `server.port`."""
    help: str
    default: object
    shown_default: str

    @property
    def flag(self) -> str:
        """`--grpc-port`."""
        return self.short_flag("")

    def short_flag(self, prefix: str) -> str:
        """The same for a command that omits the prefix: `--fifo` for `router_fifo`."""
        return "--" + self.name.removeprefix(prefix).replace("_", "-")

    @property
    def variable(self) -> str:
        """`PENSTOCK_GRPC_PORT`."""
        return ENVIRONMENT_PREFIX + self.name.upper()


def _row(kind: ValueType[Any], key: str, text: str, *, shown: str = "") -> dict[str, Any]:
    """The rest of an option's row, beside its name and default. `shown` describes a default that is computed."""
    return {"kind": kind, "key": key, "help": text, "shown": shown}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration of a server. It is checked when built; options that depend on others are filled in."""

    data_dir: Path | None = field(
        default=None, metadata=_row(PATH, "storage.data_dir", "where messages are kept", shown="./penstock-data")
    )
    memory: bool = field(
        default=False, metadata=_row(FLAG, "storage.memory", "keep messages in memory only; they are gone when the server stops")
    )

    journal: str | None = field(
        default=None,
        metadata=_row(
            JOURNAL,
            "storage.journal",
            "the PostgreSQL database that keeps the messages, for several nodes; its password not in a flag",
            shown="a data directory",
        ),
    )
    node: str | None = field(
        default=None,
        metadata=_row(WORD, "server.node", "the name of this node among those that share a journal", shown="HOST:PORT"),
    )
    read_only: bool = field(
        default=False,
        metadata=_row(FLAG, "server.read_only", "never own the journal: serve reads of the log from it, and relay the rest"),
    )

    host: str = field(default="127.0.0.1", metadata=_row(HOST, "server.host", "the address to listen on"))
    port: int = field(default=8085, metadata=_row(PORT, "server.port", "the port of HTTP and WebSocket; 0 takes a free one"))
    grpc_port: int = field(default=8086, metadata=_row(PORT, "server.grpc_port", "the port of gRPC; 0 takes a free one"))
    native_port: int | None = field(
        default=8087,
        metadata=_row(
            PORT, "server.native_port", "the port of Penstock's own protocol, which its client speaks; 0 takes a free one"
        ),
    )
    resp_port: int | None = field(
        default=None, metadata=_row(PORT, "server.resp_port", "the port of RESP3; closed unless set", shown="closed")
    )
    rpc_port: int | None = field(
        default=None, metadata=_row(PORT, "server.rpc_port", "the port of SynapRPC; closed unless set", shown="closed")
    )
    project: str = field(default=DEFAULT_PROJECT, metadata=_row(PROJECT, "server.project", "the project of calls that name none"))
    public_url: str | None = field(
        default=None,
        metadata=_row(
            URL,
            "server.public_url",
            "the address under which clients reach this server; the issuer of push tokens",
            shown="http://HOST:PORT",
        ),
    )
    shutdown_seconds: float = field(
        default=10,
        metadata=_row(
            duration(0, 3_600), "server.shutdown_seconds", "how long running calls may take to end when the server stops"
        ),
    )

    auth: str = field(
        default="none",
        metadata=_row(choice("none", "token"), "security.auth", "which clients may call: all, or those with a token"),
    )
    token_file: Path | None = field(
        default=None, metadata=_row(PATH, "security.token_file", "the file of tokens", shown="tokens.json in the data directory")
    )
    insecure: bool = field(
        default=False, metadata=_row(FLAG, "security.insecure", "allow listening beyond this machine without tokens")
    )
    tls_cert: Path | None = field(
        default=None, metadata=_row(PATH, "security.tls_cert", "the certificate chain, PEM; needs tls_key", shown="no TLS")
    )
    tls_key: Path | None = field(
        default=None, metadata=_row(PATH, "security.tls_key", "the private key of tls_cert, PEM", shown="no TLS")
    )
    cors_origins: tuple[str, ...] = field(
        default=(), metadata=_row(several(ORIGIN), "security.cors_origins", "the web pages whose scripts may call", shown="none")
    )
    push_allow: tuple[str, ...] = field(
        default=("*",),
        metadata=_row(several(HOST_PATTERN), "security.push_allow", "the hosts that push may send to", shown="any"),
    )

    console_payloads: str = field(
        default="shown",
        metadata=_row(choice("shown", "hidden"), "console.payloads", "whether the console shows and searches payloads"),
    )

    max_request_bytes: int = field(
        default=16 * 2**20,
        metadata=_row(
            size(1024, 2**30),
            "limits.max_request_bytes",
            "the largest request; a message is 10 MiB at most",
            shown="16MiB",
        ),
    )
    max_connections: int = field(
        default=10_000, metadata=_row(whole(1, 1_000_000), "limits.max_connections", "the maximum number of open connections")
    )
    max_queues: int = field(
        default=20_000,
        metadata=_row(whole(1, 10_000_000), "limits.max_queues", "the maximum number of work queues of a project"),
    )
    metrics_max_series: int = field(
        default=1_000,
        metadata=_row(
            whole(0, 1_000_000),
            "limits.metrics_max_series",
            "how many topics, subscriptions and queues each have metrics of their own; the totals include all",
        ),
    )
    log_read_rate: int | None = field(
        default=None,
        metadata=_row(
            size(2**20, 2**40),
            "limits.log_read_rate",
            "bytes a second that all readers of the log API get together, such as Spark",
            shown="no limit",
        ),
    )
    rate_limit: float = field(
        default=0,
        metadata=_row(number(0, 1_000_000), "limits.rate_limit", "calls a second that each client may make; 0: no limit"),
    )
    rate_burst: int | None = field(
        default=None,
        metadata=_row(
            whole(1, 1_000_000), "limits.rate_burst", "calls that a client may make at once", shown="one second of rate_limit"
        ),
    )

    queue_default_ack_deadline_secs: float = field(
        default=30,
        metadata=_row(duration(0.001, DAY), "queue.default_ack_deadline_secs", "how long a lease of a new queue lasts"),
    )
    queue_default_max_retries: int = field(
        default=3,
        metadata=_row(
            whole(0, 1_000_000), "queue.default_max_retries", "retries before a message of a new queue is dead-lettered"
        ),
    )
    queue_default_priority: int = field(
        default=DEFAULT_PRIORITY,
        metadata=_row(whole(0, 9), "queue.default_priority", "the priority of messages that have none, in a new queue"),
    )
    queue_max_queue_depth: int = field(
        default=100_000, metadata=_row(whole(1, MAX_COUNT), "queue.max_queue_depth", "messages that a new queue holds")
    )
    queue_dead_letter_enabled: bool = field(
        default=True, metadata=_row(FLAG, "queue.dead_letter.enabled", "keep the dead letters of a new queue")
    )
    queue_dead_letter_max_size: int = field(
        default=10_000,
        metadata=_row(whole(0, MAX_COUNT), "queue.dead_letter.max_size", "dead letters that a new queue lists"),
    )
    queue_prefetch_default: int = field(
        default=10,
        metadata=_row(
            whole(1, 1_000_000),
            "queue.prefetch.default",
            "messages that a consumer of a new queue may hold, if it asks for no other",
        ),
    )
    queue_prefetch_max: int = field(
        default=1_000,
        metadata=_row(whole(1, 1_000_000), "queue.prefetch.max", "messages that a consumer of a new queue may hold at most"),
    )
    queue_retry_policy_minimum_backoff: float = field(
        default=0,
        metadata=_row(
            duration(0, WEEK_SECONDS),
            "queue.retry_policy.minimum_backoff",
            "how long a message of a new queue waits for its first retry; twice as long for each further one; 0: not at all",
        ),
    )
    queue_retry_policy_maximum_backoff: float = field(
        default=600,
        metadata=_row(duration(0, WEEK_SECONDS), "queue.retry_policy.maximum_backoff", "the longest such wait"),
    )

    router: str | None = field(
        default=None,
        metadata=_row(
            PLACES, "router.config", "the router's configuration: a file, or one or several URLs", shown="no router runs"
        ),
    )
    router_enabled: bool = field(
        default=True,
        metadata=_row(FLAG, "router.enabled", "take and deliver messages; without it the router only serves its monitoring API"),
    )
    router_standby: str | None = field(
        default=None,
        metadata=_row(REDIS, "router.standby", "the Redis whose lock decides which of several routers works", shown="none"),
    )
    router_fifo: str = field(
        default="strict",
        metadata=_row(
            choice("strict", "batch"), "router.fifo", "what a failed message holds back: its group, or its group in its batch"
        ),
    )
    router_payload: str = field(
        default="thin",
        metadata=_row(choice("thin", "full"), "router.payload", "what targets are sent: the message's id, or also its content"),
    )
    router_allow: tuple[str, ...] = field(
        default=(),
        metadata=_row(
            several(TARGET_PATTERN),
            "router.allow",
            "hosts, addresses and networks that may be called though they are not public",
            shown="none",
        ),
    )
    router_max_attempts: int | None = field(
        default=None,
        metadata=_row(
            whole(1, 1_000_000), "router.max_attempts", "attempts after which a message is dead-lettered", shown="retried forever"
        ),
    )
    router_timeout: float = field(
        default=900, metadata=_row(duration(0.1, 43_200), "router.timeout", "how long a target may take to answer")
    )
    router_http_version: str = field(
        default="HTTP_2",
        metadata=_row(
            choice("HTTP_2", "HTTP_1_1"),
            "router.http_version",
            "the newest HTTP version offered to targets with TLS",
            shown="HTTP_2",
        ),
    )
    router_per_target: int = field(
        default=256, metadata=_row(whole(1, 10_000), "router.per_target", "calls to one target at a time")
    )
    router_breaker_scope: str = field(
        default="target",
        metadata=_row(
            choice("target", "endpoint", "global"),
            "router.breaker_scope",
            "what shares a circuit breaker: a host with its port, a URL without its query, or all targets",
        ),
    )
    router_signing_secret_file: Path | None = field(
        default=None,
        metadata=_row(
            PATH, "router.signing_secret_file", "the file of the secret that signs requests (Standard Webhooks)", shown="unsigned"
        ),
    )
    router_sync_interval: float = field(
        default=300, metadata=_row(duration(1, 86_400), "router.sync_interval", "how often the configuration is fetched again")
    )
    router_max_pools: int = field(
        default=10_000, metadata=_row(whole(1, 1_000_000), "router.max_pools", "the maximum number of pools")
    )
    router_pool_warning_threshold: int | None = field(
        default=None,
        metadata=_row(
            whole(1, 1_000_000),
            "router.pool_warning_threshold",
            "the number of pools that causes a warning",
            shown="half of router_max_pools",
        ),
    )
    router_sqs_max_messages_per_poll: int = field(
        default=10,
        metadata=_row(whole(1, 10), "router.sqs_max_messages_per_poll", "messages that a poll of Amazon SQS asks for"),
    )
    router_sqs_wait_time_seconds: int = field(
        default=20,
        metadata=_row(
            whole(0, 20),
            "router.sqs_wait_time_seconds",
            "seconds that a poll of Amazon SQS waits; the router stops after its polls",
        ),
    )
    router_development: bool = field(
        default=False, metadata=_row(FLAG, "router.development", "serve test targets and test messages, to try the router")
    )

    hub: bool = field(default=True, metadata=_row(FLAG, "hub.enabled", "serve the hub, realtime messages over WebSocket, at /ws"))
    hub_bind: tuple[str, ...] = field(
        default=(),
        metadata=_row(
            several(BINDING),
            "hub.bind",
            "hub topics bound both ways to a topic that services use, as in orders/#=orders",
            shown="none",
        ),
    )
    hub_history: tuple[str, ...] = field(
        default=(),
        metadata=_row(
            several(TOPIC_PREFIX),
            "hub.history",
            "hub topics whose messages are kept, so that reconnecting clients miss nothing: chat keeps chat and all below it",
            shown="none",
        ),
    )
    hub_history_retention: float = field(
        default=7 * DAY,
        metadata=_row(duration(7 * DAY, 366 * DAY), "hub.history_retention", "how long they are kept", shown="7d"),
    )
    hub_durable_expiry: float = field(
        default=31 * DAY,
        metadata=_row(
            duration(DAY, 366 * DAY), "hub.durable_expiry", "how long a durable subscription waits for its actor", shown="31d"
        ),
    )
    hub_rate_limit: float = field(
        default=1_000,
        metadata=_row(number(0, 1_000_000), "hub.rate_limit", "messages a second that each session may send; 0: no limit"),
    )
    hub_rate_burst: int = field(
        default=2_000, metadata=_row(whole(1, 1_000_000), "hub.rate_burst", "messages that a session may send at once")
    )
    hub_rate_bytes: int = field(
        default=8 * 2**20,
        metadata=_row(
            size(0, 2**30),
            "hub.rate_bytes",
            "bytes a second that are read from each connection; 0, or a hub_rate_limit of 0: no limit",
            shown="8MiB",
        ),
    )
    hub_max_message_bytes: int = field(
        default=2**20, metadata=_row(size(1024, 10 * 2**20), "hub.max_message_bytes", "the largest frame", shown="1MiB")
    )
    hub_max_outbox_bytes: int = field(
        default=2**20,
        metadata=_row(
            size(1024, 2**30),
            "hub.max_outbox_bytes",
            "bytes that may wait for one connection; a connection that does not read them is closed",
            shown="1MiB",
        ),
    )
    hub_max_actors: int = field(
        default=50_000, metadata=_row(whole(1, 1_000_000), "hub.max_actors", "how many actors may be registered")
    )
    hub_max_subscriptions: int = field(
        default=1_000, metadata=_row(whole(1, 1_000_000), "hub.max_subscriptions", "topics and patterns of one actor")
    )
    hub_max_broadcast: int = field(
        default=1_000, metadata=_row(whole(1, 1_000_000), "hub.max_broadcast", "recipients of one broadcast")
    )
    hub_max_per_address: int = field(
        default=10_000, metadata=_row(whole(1, 1_000_000), "hub.max_per_address", "connections of one IP address")
    )
    hub_idle: float = field(
        default=600, metadata=_row(duration(1, DAY), "hub.idle", "how long a client may be silent before it is disconnected")
    )
    hub_heartbeat: float = field(default=300, metadata=_row(duration(0.1, DAY), "hub.heartbeat", "how often clients are pinged"))
    hub_origins: tuple[str, ...] = field(
        default=(),
        metadata=_row(
            several(ORIGIN),
            "hub.origins",
            "the web pages that may connect, beside the server's own and cors_origins",
            shown="none",
        ),
    )
    hub_jwt_secret_file: Path | None = field(
        default=None,
        metadata=_row(
            PATH,
            "hub.jwt_secret_file",
            "the file of the secret that tokens are signed with (HS256), 32 bytes or more",
            shown="none",
        ),
    )
    hub_jwt_key_file: Path | None = field(
        default=None,
        metadata=_row(PATH, "hub.jwt_key_file", "the public key that tokens are checked with (RS256), PEM", shown="none"),
    )
    hub_jwks_url: str | None = field(
        default=None,
        metadata=_row(JWKS, "hub.jwks_url", "where the public keys of an identity provider are (RS256, ES256)", shown="none"),
    )
    hub_jwt_issuer: str = field(
        default=JWT_ISSUER, metadata=_row(WORD, "hub.jwt_issuer", "the issuer (iss) that a token must have")
    )
    hub_jwt_audience: str | None = field(
        default=None, metadata=_row(WORD, "hub.jwt_audience", "the audience (aud) that a token must have", shown="not asked")
    )
    hub_jwt_max_age: float = field(
        default=JWT_MAX_AGE,
        metadata=_row(duration(60, 366 * DAY), "hub.jwt_max_age", "how long ago a token may have been issued", shown="24h"),
    )

    log_level: str = field(
        default="info", metadata=_row(choice("debug", "info", "warning", "error"), "log.level", "the lowest level that is logged")
    )
    log_format: str = field(default="text", metadata=_row(choice("text", "json"), "log.format", "the format of a line"))

    def __post_init__(self) -> None:
        for option in OPTIONS:
            value = getattr(self, option.name)
            if value is not None or option.default is not None:
                object.__setattr__(self, option.name, option.kind.read(value, option.name))
        check_together({option.name: getattr(self, option.name) for option in OPTIONS}, str)
        if self.data_dir is None and not self.memory and self.journal is None:
            object.__setattr__(self, "data_dir", Path("penstock-data"))
        if self.token_file is None and self.data_dir is not None:
            object.__setattr__(self, "token_file", self.data_dir / "tokens.json")
        if self.rate_burst is None:
            object.__setattr__(self, "rate_burst", max(1, math.ceil(self.rate_limit)))

    def queue_defaults(self) -> QueueConfig:
        """The settings of work queues that are created without settings."""
        return QueueConfig(
            max_depth=self.queue_max_queue_depth,
            ack_deadline_secs=self.queue_default_ack_deadline_secs,
            max_retries=self.queue_default_max_retries,
            default_priority=self.queue_default_priority,
            default_prefetch=self.queue_prefetch_default,
            max_prefetch=self.queue_prefetch_max,
            dead_letter_enabled=self.queue_dead_letter_enabled,
            dead_letter_max_size=self.queue_dead_letter_max_size,
            retry_policy=(
                RetryPolicy(self.queue_retry_policy_minimum_backoff, self.queue_retry_policy_maximum_backoff)
                if self.queue_retry_policy_minimum_backoff
                else None
            ),
        )

    def url(self, port: int) -> str:
        """The address under which clients reach the HTTP port that was bound."""
        if self.public_url is not None:
            return self.public_url
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{port}"


OPTIONS = tuple(
    Option(
        name=entry.name,
        kind=entry.metadata["kind"],
        key=entry.metadata["key"],
        help=entry.metadata["help"],
        default=entry.default,
        shown_default=entry.metadata["shown"] or str(entry.default).lower(),
    )
    for entry in fields(Settings)
)


def check_together(values: Mapping[str, Any], label: Label) -> None:
    """Refuse values that are valid alone and invalid together; `label` returns the name of an option for the error."""
    if values.get("memory") and values.get("data_dir") is not None:
        raise InvalidArgument(
            f"{label('memory')} and {label('data_dir')} exclude each other",
            hint="messages are kept in memory or on disk; choose one",
        )
    _check_journal(values, label)
    for given, missing in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if values.get(given) is not None and values.get(missing) is None:
            raise InvalidArgument(f"{label(given)} is set without {missing}", hint="TLS needs the certificate and its key")
    ports = [name for name in ("port", "grpc_port", "native_port", "resp_port", "rpc_port") if values.get(name)]
    for index, name in enumerate(ports):
        for other in ports[:index]:
            if values[name] == values[other]:
                raise InvalidArgument(
                    f"{label(other)} and {label(name)} are both {values[name]}", hint="each needs a port of its own"
                )
    if values["auth"] == "token" and values.get("memory") and values.get("token_file") is None:
        raise InvalidArgument(
            f"{label('auth')} is 'token', and a server in memory has no data directory for the tokens", hint="set token_file"
        )
    if values["auth"] == "none" and not values["insecure"] and not is_loopback(values["host"]):
        raise InvalidArgument(
            f"{label('host')} is {values['host']!r}: all clients that reach this server could use it without a token",
            hint="require tokens with auth = 'token' (--auth token), or allow it with insecure = true (--insecure)",
        )
    for low, high in (
        ("queue_prefetch_default", "queue_prefetch_max"),
        ("queue_retry_policy_minimum_backoff", "queue_retry_policy_maximum_backoff"),
    ):
        if values[low] > values[high]:
            raise InvalidArgument(
                f"{label(low)} is {values[low]:g} and {label(high)} is {values[high]:g}", hint=f"set {low} to at most {high}"
            )
    _check_hub_topics(values, label)
    _check_hub(values, label)


def _check_journal(values: Mapping[str, Any], label: Label) -> None:
    journal = values.get("journal")
    if journal is None:
        if values.get("read_only"):
            raise InvalidArgument(f"{label('read_only')} is set without a journal", hint="set journal to a standby of PostgreSQL")
        return
    for other in ("memory", "data_dir"):
        if values.get(other):
            raise InvalidArgument(
                f"{label('journal')} and {label(other)} exclude each other",
                hint="messages are kept in PostgreSQL, in a directory or in memory; take one",
            )
    if label("journal").startswith("--") and (urlsplit(journal).password is not None or "password=" in journal):
        raise InvalidArgument(
            "--journal holds a password, which other users of this machine can see",
            hint="set PENSTOCK_JOURNAL, or storage.journal in the file of settings, or use a password file of PostgreSQL",
        )


def _check_hub_topics(values: Mapping[str, Any], label: Label) -> None:
    patterns: dict[str, str] = {}
    topics: dict[str, str] = {}
    for binding in values["hub_bind"]:
        pattern, _, topic = binding.partition("=")
        if pattern in patterns or topic in topics:
            raise InvalidArgument(
                f"{label('hub_bind')} has both {patterns.get(pattern) or topics[topic]!r} and {binding!r}",
                hint="a pattern is bound to one topic, and a topic to one pattern",
            )
        patterns[pattern] = topics[topic] = binding
    prefixes = sorted(values["hub_history"], key=lambda prefix: prefix.split("/"))
    for above, below in pairwise(prefixes):
        if f"{below}/".startswith(f"{above}/"):
            raise InvalidArgument(
                f"{label('hub_history')} has both {above!r} and {below!r}",
                hint=f"{above!r} keeps all below it; leave the other out",
            )


def _check_hub(values: Mapping[str, Any], label: Label) -> None:
    if values["hub_heartbeat"] >= values["hub_idle"]:
        raise InvalidArgument(
            f"{label('hub_heartbeat')} is {values['hub_heartbeat']:g} s and {label('hub_idle')} is {values['hub_idle']:g} s:"
            " clients would be disconnected before they are pinged",
            hint="set both, hub_heartbeat to half of hub_idle or less",
        )
    if all(values.get(name) is None for name in _JWT_KEYS):
        for name, unset in _JWT_CHECKS.items():
            if values.get(name) != unset:
                raise InvalidArgument(
                    f"{label(name)} is set, but there is no key to check tokens with", hint=f"set one of {', '.join(_JWT_KEYS)}"
                )
    elif values["hub_jwks_url"] is not None and not values["insecure"]:
        parts = urlsplit(values["hub_jwks_url"])
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise InvalidArgument(
                f"{label('hub_jwks_url')} begins with http: others could replace the keys on their way",
                hint="use https, or allow it with insecure = true (--insecure)",
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name other than `localhost` may lead anywhere."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
