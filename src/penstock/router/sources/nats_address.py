"""The URI of a NATS consumer: `nats://[user:password@|token@]host[:4222][,host…]/STREAM/CONSUMER[?subject=orders.>][&ca=FILE]`."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from penstock.errors import InvalidArgument

PORT = 4222
WANTED = "nats://[user:password@]host[:4222]/STREAM/CONSUMER[?subject=orders.>]"

_NAME = re.compile(r"[^\s.*>/\\\x00-\x20\x7f]{1,255}")
_SUBJECT = re.compile(r"[^\s.\x00-\x20\x7f]+(\.[^\s.\x00-\x20\x7f]+)*")
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%]+)\]|(?P<host>[^\s:\[\]/]+))(?::(?P<port>\d{1,5}))?")


class NatsAddress(msgspec.Struct, frozen=True):
    """Where a consumer is, and who asks for it. Never shows a secret."""

    servers: tuple[tuple[str, int], ...]
    """Hosts and ports, tried in this order."""
    stream: str
    consumer: str
    subject: str = ""
    """What a stream that is missing is made for, and what a consumer that is missing takes; "": all, and none is made."""
    user: str = ""
    password: str = ""
    token: str = ""
    is_tls: bool = False
    """Whether only an encrypted connection will do. One is also made where the server asks for it."""
    ca: str = ""
    """A file of certificates to trust; "": those that the machine trusts."""

    def __repr__(self) -> str:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers)
        return f"{'tls' if self.is_tls else 'nats'}://{hosts}/{self.stream}/{self.consumer}"


def parse_address(uri: str) -> NatsAddress:
    """The address in a URI; InvalidArgument when it is none."""
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise InvalidArgument(f"the queue's URI cannot be read: {error}", hint=f"wanted {WANTED}") from None
    who, _, hosts = parts.netloc.rpartition("@")
    user, colon, password = who.partition(":")
    # What is shown of a wrong URI leaves out who asks: that may be a secret, however it is written.
    plain = f"{parts.scheme}://{hosts}{parts.path}"
    names = [unquote(name) for name in parts.path.strip("/").split("/")]
    if parts.scheme not in {"nats", "tls"} or len(names) != 2 or parts.fragment:
        raise InvalidArgument.of("the queue's URI", plain, WANTED)
    for kind, name in zip(("stream", "consumer"), names, strict=True):
        if not _NAME.fullmatch(name):
            raise InvalidArgument.of(f"the {kind} in the queue's URI", name, "a name without blanks and . * > / \\", hint=WANTED)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := options.keys() - {"subject", "ca"}:
        raise InvalidArgument.of("an option in the queue's URI", min(unknown), "subject or ca", hint=WANTED)
    subject = options.get("subject", "")
    if "subject" in options and not _is_subject(subject):
        raise InvalidArgument.of("the subject in the queue's URI", subject, "words with dots between them, * and > among them")
    return NatsAddress(
        tuple(_server(text, plain) for text in hosts.split(",")),
        names[0],
        names[1],
        subject,
        unquote(user) if colon else "",
        unquote(password),
        "" if colon else unquote(user),
        parts.scheme == "tls",
        options.get("ca", ""),
    )


def _server(text: str, plain: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or PORT) if found else 0
    if not found or not 1 <= port <= 65_535:
        raise InvalidArgument.of("a server in the queue's URI", text, "host or host:port", hint=f"{plain!r}: wanted {WANTED}")
    return found["six"] or found["host"], port


def _is_subject(text: str) -> bool:
    return bool(_SUBJECT.fullmatch(text)) and ">" not in text.split(".")[:-1]
