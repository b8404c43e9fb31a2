"""Which source wins, where each value comes from, and what wrong sources are told."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import OPTIONS, Settings, find_file, load
from penstock.config.settings import is_loopback
from penstock.errors import InvalidArgument
from penstock.values.policy import QueueConfig, RetryPolicy
from tests.docs.pages import ROOT, table_rows


def written(folder: Path, text: str) -> Path:
    file = folder / "penstock.toml"
    file.write_text(text, encoding="utf-8")
    return file


def refusal(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None) -> str:
    with pytest.raises(InvalidArgument) as caught:
        load(flags, environ, file)
    return f"{caught.value} | {caught.value.hint}"


def test_without_any_source_everything_is_the_default() -> None:
    settings, origins = load({}, {})

    assert settings == Settings()
    assert (settings.data_dir, settings.token_file) == (Path("penstock-data"), Path("penstock-data/tokens.json"))
    assert (settings.host, settings.port, settings.grpc_port, settings.resp_port) == ("127.0.0.1", 8085, 8086, None)
    assert settings.max_request_bytes == 16 * 1024 * 1024
    assert set(origins) == {option.name for option in OPTIONS}
    assert set(origins.values()) == {"default"}


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, object], dict[str, str], str, int, str]] = [
        ({"port": "1"}, {"PENSTOCK_PORT": "2"}, "[server]\nport = 3", 1, "--port"),
        ({"port": None}, {"PENSTOCK_PORT": "2"}, "[server]\nport = 3", 2, "PENSTOCK_PORT"),
        ({}, {"PENSTOCK_PORT": ""}, "[server]\nport = 3", 3, "[server] port"),
        ({}, {}, "[server]\nport = 3", 3, "[server] port"),
        ({"port": 0}, {}, "[server]\nport = 3", 0, "--port"),
        ({"port": "1"}, {}, "", 1, "--port"),
        ({}, {"PENSTOCK_PORT": "2"}, "", 2, "PENSTOCK_PORT"),
        ({}, {"penstock_port": "2"}, "", 8085, "default"),
        ({}, {}, "[server]\n[limits]", 8085, "default"),
    ]
    for flags, environ, text, port, origin in rows:
        with subtests.test(flags=flags, environ=environ):
            settings, origins = load(flags, environ, written(tmp_path, text))

            assert settings.port == port
            assert origins["port"].endswith(origin)


# A right value of each option that is not its default: as text, as a file says it, and as the settings have it.
VALUES: dict[str, tuple[str, str, object]] = {
    "data_dir": ("elsewhere", '"elsewhere"', Path("elsewhere")),
    "memory": ("true", "true", True),
    "journal": ("postgresql://u@h/d", '"postgresql://u@h/d"', "postgresql://u@h/d"),
    "node": ("a", '"a"', "a"),
    "read_only": ("true", "true", True),
    "host": ("::1", '"::1"', "::1"),
    "port": ("1", "1", 1),
    "grpc_port": ("2", "2", 2),
    "native_port": ("5", "5", 5),
    "resp_port": ("3", "3", 3),
    "rpc_port": ("4", "4", 4),
    "project": ("acme", '"acme"', "acme"),
    "public_url": ("https://a.example", '"https://a.example"', "https://a.example"),
    "shutdown_seconds": ("1m", '"1m"', 60),
    "auth": ("token", '"token"', "token"),
    "token_file": ("keys.json", '"keys.json"', Path("keys.json")),
    "insecure": ("on", "true", True),
    "cors_origins": (
        "https://a.example,https://b.example",
        '["https://a.example", "https://b.example"]',
        ("https://a.example", "https://b.example"),
    ),
    "push_allow": ("*.example.com", '["*.example.com"]', ("*.example.com",)),
    "console_payloads": ("hidden", '"hidden"', "hidden"),
    "max_request_bytes": ("1MiB", '"1MiB"', 2**20),
    "max_connections": ("7", "7", 7),
    "max_queues": ("30000", "30000", 30_000),
    "metrics_max_series": ("0", "0", 0),
    "log_read_rate": ("50MB", '"50MB"', 50_000_000),
    "rate_limit": ("2.5", "2.5", 2.5),
    "rate_burst": ("9", "9", 9),
    "queue_default_ack_deadline_secs": ("1m", '"1m"', 60),
    "queue_default_max_retries": ("0", "0", 0),
    "queue_default_priority": ("9", "9", 9),
    "queue_max_queue_depth": ("500", "500", 500),
    "queue_dead_letter_enabled": ("off", "false", False),
    "queue_dead_letter_max_size": ("0", "0", 0),
    "queue_prefetch_default": ("20", "20", 20),
    "queue_prefetch_max": ("2000", "2000", 2_000),
    "queue_retry_policy_minimum_backoff": ("500ms", "0.5", 0.5),
    "queue_retry_policy_maximum_backoff": ("5m", '"5m"', 300),
    "router": ("router.json", '"router.json"', "router.json"),
    "router_enabled": ("off", "false", False),
    "router_standby": ("redis://127.0.0.1:6379/0", '"redis://127.0.0.1:6379/0"', "redis://127.0.0.1:6379/0"),
    "router_fifo": ("batch", '"batch"', "batch"),
    "router_payload": ("full", '"full"', "full"),
    "router_allow": ("127.0.0.1,10.0.0.0/8", '["127.0.0.1", "10.0.0.0/8"]', ("127.0.0.1", "10.0.0.0/8")),
    "router_max_attempts": ("5", "5", 5),
    "router_timeout": ("1m", '"1m"', 60),
    "router_http_version": ("HTTP_1_1", '"HTTP_1_1"', "HTTP_1_1"),
    "router_per_target": ("8", "8", 8),
    "router_breaker_scope": ("global", '"global"', "global"),
    "router_signing_secret_file": ("secret", '"secret"', Path("secret")),
    "router_sync_interval": ("30s", '"30s"', 30),
    "router_max_pools": ("6", "6", 6),
    "router_pool_warning_threshold": ("4", "4", 4),
    "router_sqs_max_messages_per_poll": ("3", "3", 3),
    "router_sqs_wait_time_seconds": ("0", "0", 0),
    "router_development": ("on", "true", True),
    "hub": ("off", "false", False),
    "hub_bind": ("orders/#=orders,a/+/b=Other.1", '["orders/#=orders", "a/+/b=Other.1"]', ("orders/#=orders", "a/+/b=Other.1")),
    "hub_history": ("chat,news/eu", '["chat", "news/eu"]', ("chat", "news/eu")),
    "hub_history_retention": ("8d", '"8d"', 691_200),
    "hub_durable_expiry": ("2d", '"2d"', 172_800),
    "hub_rate_limit": ("0", "0", 0),
    "hub_rate_burst": ("10", "10", 10),
    "hub_rate_bytes": ("1MiB", '"1MiB"', 2**20),
    "hub_max_message_bytes": ("64KiB", '"64KiB"', 2**16),
    "hub_max_outbox_bytes": ("64KiB", '"64KiB"', 2**16),
    "hub_max_actors": ("11", "11", 11),
    "hub_max_subscriptions": ("12", "12", 12),
    "hub_max_broadcast": ("13", "13", 13),
    "hub_max_per_address": ("14", "14", 14),
    "hub_idle": ("20m", '"20m"', 1_200),
    "hub_heartbeat": ("30s", '"30s"', 30),
    "hub_origins": ("https://a.example", '["https://a.example"]', ("https://a.example",)),
    "hub_jwt_secret_file": ("secret", '"secret"', Path("secret")),
    "hub_jwt_key_file": ("key.pem", '"key.pem"', Path("key.pem")),
    "hub_jwks_url": ("https://a.example/keys?p=1", '"https://a.example/keys?p=1"', "https://a.example/keys?p=1"),
    "hub_jwt_issuer": ("https://a.example", '"https://a.example"', "https://a.example"),
    "hub_jwt_audience": ("penstock", '"penstock"', "penstock"),
    "hub_jwt_max_age": ("1h", '"1h"', 3_600),
    "log_level": ("debug", '"debug"', "debug"),
    "log_format": ("json", '"json"', "json"),
}

# What must be said too, for an option that means nothing alone.
NEEDED = {name: {"PENSTOCK_HUB_JWT_KEY_FILE": "key.pem"} for name in ("hub_jwt_issuer", "hub_jwt_audience", "hub_jwt_max_age")}
NEEDED["read_only"] = {"PENSTOCK_JOURNAL": "postgresql://h/d"}


def test_the_table_above_has_every_option_but_those_of_tls() -> None:
    assert {option.name for option in OPTIONS} - set(VALUES) == {"tls_cert", "tls_key"}


def test_every_option_is_read_from_every_source(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for option in [option for option in OPTIONS if option.name in VALUES]:
        with subtests.test(option=option.name):
            text, toml, value = VALUES[option.name]
            section, _, key = option.key.rpartition(".")
            file = written(tmp_path, f"[{section}]\n{key} = {toml}\n")
            in_file = tmp_path / value if isinstance(value, Path) else value

            for flags, environ, chosen, origin, wanted in (
                ({option.name: text}, {}, None, option.flag, value),
                ({}, {option.variable: text}, None, option.variable, value),
                ({}, {}, file, f"{file}: [{section}] {key}", in_file),
            ):
                settings, origins = load(flags, {**environ, **NEEDED.get(option.name, {})}, chosen)
                assert getattr(settings, option.name) == wanted
                assert origins[option.name] == origin


def test_certificate_and_key_are_read_and_must_exist(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for source in ("flag", "environment", "file"):
        with subtests.test(source=source):
            for name in ("cert.pem", "key.pem"):
                (tmp_path / name).touch()
            paths = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
            file = written(tmp_path, '[security]\ntls_cert = "cert.pem"\ntls_key = "key.pem"') if source == "file" else None
            flags = {name: str(path) for name, path in paths.items()} if source == "flag" else {}
            environ = {f"PENSTOCK_{name.upper()}": str(path) for name, path in paths.items()} if source == "environment" else {}

            settings, _ = load(flags, environ, file)
            assert (settings.tls_cert, settings.tls_key) == (paths["tls_cert"], paths["tls_key"])
            assert settings.url(8085) == "https://127.0.0.1:8085"

            paths["tls_key"].unlink()
            assert "key.pem', expected a file that exists" in refusal(flags, environ, file)


def test_what_depends_on_other_settings_is_filled_in() -> None:
    assert Settings(data_dir=Path("d")).token_file == Path("d/tokens.json")
    assert (Settings(memory=True).data_dir, Settings(memory=True).token_file) == (None, None)
    assert (Settings().rate_burst, Settings(rate_limit=2.5).rate_burst, Settings(rate_limit=9, rate_burst=2).rate_burst) == (
        1,
        3,
        2,
    )
    assert Settings(host="::1").url(80) == "http://[::1]:80"
    assert Settings(public_url="https://p.example/").url(80) == "https://p.example"


def test_a_wrong_value_is_told_with_its_origin(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, object], dict[str, str], str]] = [
        ({"port": "70000"}, {}, "--port is '70000', expected a whole number from 0 to 65535"),
        ({}, {"PENSTOCK_GRPC_PORT": "off"}, "PENSTOCK_GRPC_PORT is 'off', expected a whole number"),
        ({"tls_cert": "pyproject.toml"}, {}, "--tls-cert is set without tls_key"),
        ({"tls_key": "pyproject.toml"}, {}, "--tls-key is set without tls_cert"),
        ({"memory": True, "data_dir": "d"}, {}, "--memory and --data-dir exclude each other"),
        ({"journal": "postgresql://u:hush@h/d"}, {}, "--journal holds a password, which other users of this machine can see"),
        ({"read_only": True}, {}, "--read-only is set without a journal"),
        ({"journal": "mysql://h/d"}, {}, "is not the address of a PostgreSQL database"),
        ({"journal": "postgresql://h/d", "memory": True}, {}, "--journal and --memory exclude each other"),
        ({"data_dir": "d"}, {"PENSTOCK_JOURNAL": "postgresql://h/d"}, "PENSTOCK_JOURNAL and --data-dir exclude each other"),
        ({}, {"PENSTOCK_MEMORY": "1", "PENSTOCK_DATA_DIR": "d"}, "PENSTOCK_MEMORY and PENSTOCK_DATA_DIR exclude each other"),
        ({"grpc_port": "8085"}, {}, "port and --grpc-port are both 8085"),
        ({"resp_port": "9"}, {"PENSTOCK_RPC_PORT": "9"}, "--resp-port and PENSTOCK_RPC_PORT are both 9"),
        ({"memory": True, "auth": "token"}, {}, "--auth is 'token', and a server in memory has no data directory"),
        ({}, {"PENSTOCK_PROT": "1"}, "PENSTOCK_PROT is not a setting | did you mean PENSTOCK_PORT?"),
        ({}, {"PENSTOCK_GRPCPORT": "1"}, "did you mean PENSTOCK_GRPC_PORT?"),
        ({"prot": "1"}, {}, "--prot is not a setting | did you mean --port?"),
        ({"log_level": "loud"}, {}, "--log-level is 'loud', expected 'debug' or 'info' or 'warning' or 'error'"),
        ({}, {"PENSTOCK_MEMORY": "maybe"}, "PENSTOCK_MEMORY is 'maybe', expected true or false"),
        ({"shutdown_seconds": "2h"}, {}, "--shutdown-seconds is '2h', expected a duration from 0 to 3600 s"),
        ({"max_request_bytes": "1"}, {}, "--max-request-bytes is '1', expected a size from 1024"),
        ({"rate_limit": "-1"}, {}, "--rate-limit is '-1'"),
        ({"data_dir": ""}, {}, "--data-dir is '', expected a path"),
        ({"hub_bind": "orders"}, {}, "--hub-bind is 'orders', expected a list, each PATTERN=TOPIC such as orders/#=orders"),
        ({"hub_bind": "a=one-topic,a=other"}, {}, "--hub-bind has both 'a=one-topic' and 'a=other'"),
        ({"hub_bind": "a=orders,b=orders"}, {}, "has both 'a=orders' and 'b=orders' | a pattern is bound to one topic"),
        ({"hub_history": "c,a/b,a-b,a"}, {}, "--hub-history has both 'a' and 'a/b' | 'a' keeps all below it"),
        ({"hub_history": "a,a"}, {}, "--hub-history has both 'a' and 'a'"),
        ({"hub_idle": "60"}, {}, "hub_heartbeat is 300 s and --hub-idle is 60 s: clients would be disconnected"),
        (
            {"hub_jwt_issuer": "me"},
            {},
            "--hub-jwt-issuer is set, but there is no key to check tokens with | set one of",
        ),
        ({}, {"PENSTOCK_HUB_JWT_AUDIENCE": "me"}, "PENSTOCK_HUB_JWT_AUDIENCE is set, but there is no key"),
        ({"hub_jwt_max_age": "1h"}, {}, "--hub-jwt-max-age is set, but there is no key"),
        ({"hub_jwks_url": "http://a.example/keys"}, {}, "--hub-jwks-url begins with http: others could replace the keys"),
    ]
    for flags, environ, said in rows:
        with subtests.test(flags=flags, environ=environ):
            assert said in refusal(flags, environ)


def test_a_wrong_file_is_told_with_its_key(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("[server]\nprot = 1", "penstock.toml: [server] prot is not a setting | did you mean [server] port?"),
        ("port = 1", "penstock.toml: port is not a setting | did you mean [server] port?"),
        ("[sever]\nport = 1", "penstock.toml: sever is not a setting | did you mean [server]"),
        ("[server]\nlog_level = 'info'", "did you mean [log] level?"),
        ("[zzz]\nqqq = 1", "penstock.toml: zzz is not a setting | `penstock config` lists them all"),
        ("server = 1", "penstock.toml: server is not a setting"),
        ("[[server]]\nport = 1", "penstock.toml: server is not a setting"),
        ("[server.port]\nx = 1", "penstock.toml: [server] port is {'x': 1}, expected a whole number"),
        ('[server]\nport = "8085"', "penstock.toml: [server] port is '8085', expected a whole number"),
        ("[server]\nport = 80.0", "[server] port is 80.0, expected"),
        ("[server]\nport = 1979-05-27", "[server] port is datetime.date(1979, 5, 27), expected"),
        ("[storage]\nmemory = 'false'", "[storage] memory is 'false', expected true or false"),
        ("[security]\npush_allow = 'a'", "[security] push_allow is 'a', expected a list"),
        ("[security]\npush_allow = [1]", "[security] push_allow is [1], expected a list"),
        ("[storage]\nmemory = true\ndata_dir = 'd'", "exclude each other"),
        ("[server\nport = 1", "penstock.toml is not a TOML file: Expected ']'"),
        ("[server]\nport = 1\nport = 2\n", "(at line 3, column 9)"),
        (f"x = {'[' * 5000}", "penstock.toml is not a TOML file"),
    ]
    for text, said in rows:
        with subtests.test(text=text, said=said):
            assert said in refusal({}, {}, written(tmp_path, text))


def test_a_file_that_is_missing_a_folder_or_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")

    assert "No such file" in refusal({}, {}, tmp_path / "missing.toml")
    assert "Is a directory" in refusal({}, {}, tmp_path)
    assert "is not a TOML file" in refusal({}, {}, tmp_path / "binary")


def test_the_higher_source_chooses_between_memory_and_disk(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, object], dict[str, str], str, bool, Path | None]] = [
        ({"memory": True}, {"PENSTOCK_DATA_DIR": "e"}, "[storage]\ndata_dir = 'f'", True, None),
        ({"data_dir": "d"}, {"PENSTOCK_MEMORY": "1"}, "", False, Path("d")),
        ({}, {"PENSTOCK_DATA_DIR": "e"}, "[storage]\nmemory = true", False, Path("e")),
        ({"memory": True}, {"PENSTOCK_DATA_DIR": "e", "PENSTOCK_MEMORY": "0"}, "", True, None),
        ({"data_dir": "d"}, {"PENSTOCK_DATA_DIR": "e"}, "[storage]\nmemory = true", False, Path("d")),
        ({"memory": False}, {"PENSTOCK_MEMORY": "1", "PENSTOCK_DATA_DIR": "e"}, "", False, Path("e")),
    ]
    for flags, environ, text, memory, data_dir in rows:
        with subtests.test(flags=flags, environ=environ):
            settings, _ = load(flags, environ, written(tmp_path, text))

            assert (settings.memory, settings.data_dir) == (memory, data_dir)


def test_listening_beyond_this_machine_needs_tokens_or_a_word(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["0.0.0.0", "::", "192.168.0.1", "example.com", "localhost.example.com", "127.1", "::ffff:10.0.0.1", "0"]
    for host in rows:
        with subtests.test(host=host):
            said = refusal({"host": host}, {})

            assert said.startswith(f"--host is {host!r}: all clients that reach this server")
            assert "--auth token" in said
            assert "--insecure" in said
            assert load({"host": host, "auth": "token"}, {})[0].host == host
            assert load({"host": host, "insecure": True}, {})[0].host == host


def test_a_loopback_address_is_known(subtests: pytest.Subtests) -> None:
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"):
        with subtests.test(host=host):
            assert is_loopback(host)
            assert load({"host": host}, {})[0].host == host


def test_options_of_the_hub_that_go_together(subtests: pytest.Subtests) -> None:
    rows: list[dict[str, object]] = [
        {"hub_jwks_url": "http://127.0.0.1:9000/keys"},
        {"hub_jwks_url": "http://[::1]/keys"},
        {"hub_jwks_url": "http://a.example/keys", "insecure": True},
        {"hub_jwks_url": "https://a.example/keys", "hub_jwt_key_file": "key.pem", "hub_jwt_secret_file": "secret"},
        {"hub_idle": "1s", "hub_heartbeat": "0.5"},
        {"hub_history": "chat,chat-room,chat_room/eu"},
        {"hub_bind": "#=orders"},
    ]
    for flags in rows:
        with subtests.test(flags=str(flags)):
            load(flags, {})


def test_what_kubernetes_says_about_a_service_called_penstock_is_no_setting() -> None:
    link = {
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_SERVICE_PORT": "8085",
        "PENSTOCK_SERVICE_PORT_HTTP": "8085",
        "PENSTOCK_PORT": "tcp://10.0.0.1:8085",
        "PENSTOCK_PORT_8085_TCP": "tcp://10.0.0.1:8085",
        "PENSTOCK_PORT_8085_TCP_PORT": "8085",
    }
    assert load({}, link)[0].port == 8085
    assert load({}, {"PENSTOCK_SEED": "1", "PENSTOCK_CONFIG": "x", "HOME": "y"})[0] == Settings()


def test_the_file_is_the_flags_or_the_variables_or_the_one_that_lies_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"PENSTOCK_CONFIG": "b.toml"}

    assert find_file(None, {}) is None
    written(tmp_path, "")
    assert find_file(None, {}) == Path("penstock.toml")
    assert find_file(None, environ) == Path("b.toml")
    assert find_file("a.toml", environ) == Path("a.toml")


def test_settings_made_in_python_are_checked_too(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, Any]] = [("port", 70_000), ("port", "80"), ("auth", "basic"), ("port", None), ("push_allow", "*")]
    for name, value in rows:
        with subtests.test(name=name, value=value), pytest.raises(InvalidArgument, match=name):
            Settings(**{name: value})


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


@given(
    flags=st.dictionaries(st.sampled_from([option.name for option in OPTIONS]), st.text(max_size=12), max_size=4),
    environ=st.dictionaries(st.sampled_from([option.variable for option in OPTIONS]), st.text(max_size=12), max_size=4),
)
def test_any_text_gives_settings_or_a_refusal(flags: dict[str, object], environ: dict[str, str]) -> None:
    try:
        settings, _ = load(flags, environ)
    except InvalidArgument:
        return
    assert settings.auth == "token" or settings.insecure or is_loopback(settings.host)


def test_the_page_has_every_option_as_it_is() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = {row[0]: row[1:] for row in table_rows(page) if len(row) == 4}

    for option in OPTIONS:
        section, _, key = option.key.rpartition(".")
        default, place, text = rows[f"`{option.name}`"]
        assert (default.strip("`"), place, text) == (option.shown_default, f"`[{section}] {key}`", option.help)
    documented = {name.strip("`") for name in rows if re.fullmatch(r"`\w+`", name)}
    assert documented == {option.name for option in OPTIONS}


def test_the_queue_section_has_the_keys_of_the_specification(tmp_path: Path) -> None:
    assert Settings().queue_defaults() == QueueConfig()
    file = written(
        tmp_path,
        """
        [queue]
        default_ack_deadline_secs = 60
        default_max_retries = 5
        default_priority = 4
        max_queue_depth = 500
        dead_letter = { enabled = false, max_size = 7 }
        [queue.prefetch]
        default = 20
        max = 200
        [queue.retry_policy]
        minimum_backoff = "1s"
        """,
    )
    settings, origins = load({"queue_default_priority": "6"}, {"PENSTOCK_QUEUE_PREFETCH_MAX": "300"}, file)
    assert settings.queue_defaults() == QueueConfig(
        ack_deadline_secs=60,
        max_retries=5,
        default_priority=6,
        max_depth=500,
        dead_letter_enabled=False,
        dead_letter_max_size=7,
        default_prefetch=20,
        max_prefetch=300,
        retry_policy=RetryPolicy(1, 600),
    )
    assert origins["queue_dead_letter_max_size"] == f"{file}: [queue.dead_letter] max_size"
    assert (origins["queue_default_priority"], origins["queue_prefetch_max"]) == (
        "--queue-default-priority",
        "PENSTOCK_QUEUE_PREFETCH_MAX",
    )


def test_wrong_queue_settings_are_refused_where_they_are(tmp_path: Path) -> None:
    for text, expected in (
        ("[queue.prefetch]\ndefault = 2000", "[queue.prefetch] default is 2000 and queue_prefetch_max is 1000"),
        ("[queue.prefetch]\nmin = 1", "[queue.prefetch] min is not a setting"),
        ("[queue.dead_letter.more]\na = 1", "[queue.dead_letter] more is not a setting"),
        ("[queue.retry_policy]\nminimum_backoff = 700", "minimum_backoff is 700 and queue_retry_policy_maximum_backoff is 600"),
        ("[queue]\ndead_letter = true", "[queue] dead_letter is not a setting"),
        ("[queue]\ndefault_priority = 10", "[queue] default_priority is 10, expected a whole number from 0 to 9"),
    ):
        assert expected in refusal({}, {}, written(tmp_path, text))
