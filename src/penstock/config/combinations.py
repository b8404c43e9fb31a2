"""Settings that are right alone and wrong together."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import InvalidArgument

Label = Callable[[str], str]
JWT_ISSUER = "signal-hub"
JWT_MAX_AGE = 86_400
_JWT_KEYS = ("hub_jwt_secret_file", "hub_jwt_key_file", "hub_jwks_url")
_JWT_CHECKS = {"hub_jwt_issuer": JWT_ISSUER, "hub_jwt_audience": None, "hub_jwt_max_age": JWT_MAX_AGE}
"""What is asked of a token beside its signature, and what says that nobody chose it."""


def check_together(values: Mapping[str, Any], label: Label) -> None:
    """Refuse values that are right alone and wrong together; `label` says what to call an option in the error."""
    if values.get("memory") and values.get("data_dir") is not None:
        raise InvalidArgument(
            f"{label('memory')} and {label('data_dir')} exclude each other",
            hint="messages are kept in memory or on disk; take one",
        )
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
            f"{label('host')} is {values['host']!r}: others could reach this server, and nothing would ask who they are",
            hint="ask for tokens with auth = 'token' (--auth token), or say that it is meant with insecure = true (--insecure)",
        )
    _check_hub_topics(values, label)
    _check_hub(values, label)


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
            " clients would be disconnected before they are asked for a sign of life",
            hint="set both, hub_heartbeat to half of hub_idle or less",
        )
    if all(values.get(name) is None for name in _JWT_KEYS):
        for name, unset in _JWT_CHECKS.items():
            if values.get(name) != unset:
                raise InvalidArgument(
                    f"{label(name)} is set, and there is no key to check tokens with", hint=f"set one of {', '.join(_JWT_KEYS)}"
                )
    elif values["hub_jwks_url"] is not None and not values["insecure"]:
        parts = urlsplit(values["hub_jwks_url"])
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise InvalidArgument(
                f"{label('hub_jwks_url')} begins with http: on the way somebody could put other keys in place of these",
                hint="fetch them by https, or say that it is meant with insecure = true (--insecure)",
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name that is not `localhost` may lead anywhere."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
