"""What no honest client of the hub sends, as tables: each row is what is sent, and what has to come back.

A row begins where its stage says: after the handshake, after hub:connect, or after hub:register. A text is sent as one text
frame, bytes are sent as they are. What comes is named in its order; where the last of it is no close, the connection goes on.
Read them as the list of what the hub survives.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.hub.core.address import EVERYONE, HUB
from penstock.hub.core.messages import COMMANDS
from tests.integration.hub.wire import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, frame

OPENED, CONNECTED, MEMBER, ORIGINAL = "opened", "connected", "member", "connected in the original's dialect"
HOSTILE = "@(hostile/one)"
INNOCENT = "@(innocent/reader)"
TOKEN, SUBSCRIPTION = "<the innocent's renewal token>", "<the innocent's subscription>"
"""Stand in a text for what only a running hub knows."""
MEBIBYTE = 2**20
BEYOND = 4 * MEBIBYTE
"""From here on a frame is not even read."""


@dataclass(frozen=True)
class Error:
    """hub:error, with its code and the reason among its details."""

    code: str
    reason: str


@dataclass(frozen=True)
class Reply:
    """A message of this type, with at least these fields in its payload."""

    kind: str
    fields: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Pong:
    """The answer to a ping, or to so many of them."""

    payload: bytes = b""
    times: int = 1


@dataclass(frozen=True)
class Closed:
    """The server's close. Where it is sent while the client still sends, the client may see a cut connection instead."""

    code: int
    or_cut: bool = False


@dataclass(frozen=True)
class Many:
    """Any number of these, in any order; each at least once, unless it may be that some are not sent any more."""

    kinds: tuple[Error | Reply | Pong, ...]
    each: bool = True


Sent = str | bytes | Callable[[], str | bytes]
"""What is large is made when it is sent."""
Comes = Error | Reply | Pong | Closed | Many


@dataclass(frozen=True)
class Row:
    """One thing that is sent, and what has to come."""

    sent: tuple[Sent, ...]
    comes: tuple[Comes, ...]
    stage: str

    @property
    def goes_on(self) -> bool:
        """Whether the connection has to stay open."""
        return not (self.comes and isinstance(self.comes[-1], Closed))


def row(sent: Sent | tuple[Sent, ...], *comes: Comes, stage: str = CONNECTED) -> Row:
    return Row(sent if isinstance(sent, tuple) else (sent,), comes, stage)


def said(kind: object, payload: object = None, **envelope: object) -> str:
    """A request. A name that is a word of Python's takes an underscore: `from_`."""
    fields = {name.removesuffix("_"): value for name, value in envelope.items()}
    return json.dumps({"type": kind, "payload": payload, **fields})


def refused(reason: str, code: str = "internal_error") -> Error:
    return Error(code, reason)


def reply(kind: str, **fields: object) -> Reply:
    return Reply(kind, tuple(fields.items()))


def named(prefix: str, rows: dict[str, Row]) -> dict[str, Row]:
    return {f"{prefix}: {name}": found for name, found in rows.items()}


BEAT = said("hub:heartbeat", {"timestamp": 1})
ALIVE = reply("hub:heartbeat_ack")
NOT_JSON, NO_ENVELOPE, NO_PAYLOAD = refused("invalid_json"), refused("invalid_envelope"), refused("invalid_payload")
TOO_LARGE = refused("message_too_large", "message_too_large")
STRANGER = refused("not_connected", "unauthorized")


# --- JSON ---------------------------------------------------------------------------------------------------------------------


def padded(size: int, filler: str = "x") -> str:
    """A heartbeat of so many bytes, filled up in a field that nobody reads."""
    shell = '{"type":"hub:heartbeat","payload":{"pad":""}}'
    count, rest = divmod(size - len(shell), len(filler.encode()))
    return shell.replace('"pad":""', f'"pad":"{filler * count}{"x" * rest}"')


def nested(depth: int, inside: str = "[]") -> str:
    """So many lists or objects in one another."""
    begin, end = (inside[0], inside[-1]) if inside == "[]" else ('{"a":', "}")
    return begin * depth + ("" if inside == "[]" else "1") + end * depth


def with_field(value: str) -> str:
    """A heartbeat with a field that nobody reads, of this JSON."""
    return f'{{"type":"hub:heartbeat","unread":{value}}}'


JSON = {
    "an empty text": row("", NOT_JSON),
    "a space": row(" ", NOT_JSON),
    "a truncated object": row('{"type":"hub:heartbeat"', NOT_JSON),
    "a truncated text": row('{"type":"hub:heart', NOT_JSON),
    "a truncated escape": row('{"type":"hub\\u00', NOT_JSON),
    "half an object behind a whole one": row(BEAT + "{", NOT_JSON),
    "two objects": row(BEAT + BEAT, NOT_JSON),
    "lines of objects": row(f"{BEAT}\n{BEAT}", NOT_JSON),
    "trailing garbage": row(BEAT + "garbage", NOT_JSON),
    "a trailing NUL": row(BEAT + "\0", NOT_JSON),
    "a trailing comma": row('{"type":"hub:heartbeat",}', NOT_JSON),
    "single quotes": row("{'type':'hub:heartbeat'}", NOT_JSON),
    "names without quotes": row('{type:"hub:heartbeat"}', NOT_JSON),
    "a comment": row('{"type":"hub:heartbeat"/* beat */}', NOT_JSON),
    "not JSON": row("GET / HTTP/1.1\r\n\r\n", NOT_JSON),
    "a byte order mark": row("\ufeff" + BEAT, NOT_JSON),
    "an array": row("[]", NO_ENVELOPE),
    "an array of requests": row(f"[{BEAT},{BEAT}]", NO_ENVELOPE),
    "a text": row('"hub:heartbeat"', NO_ENVELOPE),
    "a number": row("1", NO_ENVELOPE),
    "true": row("true", NO_ENVELOPE),
    "null": row("null", NO_ENVELOPE),
    "an empty object": row("{}", NO_ENVELOPE),
    "NaN": row(with_field("NaN"), NOT_JSON),
    "Infinity": row(with_field("-Infinity"), NOT_JSON),
    "a number beyond all numbers": row('{"type":"hub:heartbeat","timestamp":1e999}', NO_ENVELOPE),
    "a number of 100,000 digits": row('{"type":"hub:heartbeat","timestamp":' + "9" * 100_000 + "}", NO_ENVELOPE),
    "such a number where nobody looks": row(with_field("9" * 100_000), ALIVE),
    "such a number in a payload": row('{"type":"hub:heartbeat","payload":{"timestamp":' + "9" * 100_000 + "}}", NO_PAYLOAD),
    "a number with a leading zero": row(with_field("01"), NOT_JSON),
    "a hexadecimal number": row(with_field("0x1"), NOT_JSON),
    "a type twice": row('{"type":"hub:publish","type":"hub:heartbeat"}', ALIVE),
    "a payload twice": row('{"type":"hub:heartbeat","payload":7,"payload":{}}', ALIVE),
    "10,000 fields": row(lambda: said("hub:heartbeat", None, **{f"f{n}": n for n in range(10_000)}), ALIVE),
    "lists 100 deep": row(with_field(nested(100)), ALIVE),
    "lists 1,000 deep": row(with_field(nested(1_000)), NOT_JSON),
    "lists 100,000 deep": row(with_field(nested(100_000)), NOT_JSON),
    "objects 100,000 deep": row(with_field(nested(100_000, "{}")), NOT_JSON),
    "lists that never end": row("[" * 500_000, NO_ENVELOPE),
    "a payload 100,000 deep": row(f'{{"type":"hub:heartbeat","payload":{nested(100_000, "{}")}}}', NOT_JSON),
    "a high surrogate alone": row('{"type":"hub:heartbeat","id":"\\ud800"}', NOT_JSON),
    "a low surrogate alone": row('{"type":"hub:heartbeat","id":"\\udc00 "}', NOT_JSON),
    "surrogates the wrong way round": row('{"type":"hub:heartbeat","id":"\\udc00\\ud800"}', NOT_JSON),
    "a surrogate where nobody looks": row(with_field('"\\ud800 "'), NOT_JSON),
    "a surrogate in a name": row('{"\\ud800 ":1,"type":"hub:heartbeat"}', NOT_JSON),
    "an escaped NUL": row(said("hub:heartbeat", None, id="a\0b"), ALIVE),
    "a raw NUL": row('{"type":"hub:heartbeat","id":"a\0b"}', NOT_JSON),
    "a raw line break": row('{"type":"hub:heartbeat","id":"a\nb"}', NOT_JSON),
    "an unknown escape": row('{"type":"hub:heartbeat","id":"\\q"}', NOT_JSON),
    "what is no character": row(said("hub:heartbeat", None, id="\uffff\ufdd0"), ALIVE),
    "text that turns around": row(said("hub:heartbeat", None, id="\u202e\u2066"), ALIVE),
}

SIZES = {
    "a byte below the limit": row(lambda: padded(MEBIBYTE - 1), ALIVE),
    "the limit": row(lambda: padded(MEBIBYTE), ALIVE),
    "a byte above the limit": row(lambda: padded(MEBIBYTE + 1), TOO_LARGE),
    "the limit in characters of two bytes": row(lambda: padded(MEBIBYTE, "é"), ALIVE),
    "a byte above the limit in characters of two bytes": row(lambda: padded(MEBIBYTE + 1, "é"), TOO_LARGE),
    "as many characters as may be bytes, of three": row(lambda: padded(MEBIBYTE * 3, "漢"), TOO_LARGE),
    "a byte above the limit in characters of four bytes": row(lambda: padded(MEBIBYTE + 1, "🙂"), TOO_LARGE),
    "garbage above the limit": row(lambda: "[" * (MEBIBYTE + 1), TOO_LARGE),
    "the most that is read": row(lambda: padded(BEYOND - 1), TOO_LARGE),
    "5 MiB announced": row(struct.pack("!BBQ", 0x80 | TEXT, 0x80 | 127, 5 * MEBIBYTE), Closed(1009)),
    "5 MiB": row(lambda: padded(5 * MEBIBYTE), Closed(1009, or_cut=True)),
    "the largest length there is": row(struct.pack("!BBQ", 0x80 | TEXT, 0x80 | 127, 2**63 - 1), Closed(1009)),
    "a negative length": row(struct.pack("!BBq", 0x80 | TEXT, 0x80 | 127, -1), Closed(1009)),
    "above the limit before hub:connect": row(lambda: padded(MEBIBYTE + 1), TOO_LARGE, stage=OPENED),
}

UTF8 = {
    "a byte that begins nothing": row(frame(TEXT, b'{"type":"\xff"}'), Closed(1007)),
    "a continuation alone": row(frame(TEXT, b'{"type":"\x80"}'), Closed(1007)),
    "a character cut off": row(frame(TEXT, b'{"type":"\xe6\xbc'), Closed(1007)),
    "an overlong slash": row(frame(TEXT, b'{"type":"\xc0\xaf"}'), Closed(1007)),
    "an overlong NUL": row(frame(TEXT, b'{"type":"\xc0\x80"}'), Closed(1007)),
    "a surrogate as bytes": row(frame(TEXT, b'{"type":"\xed\xa0\x80"}'), Closed(1007)),
    "beyond the last character": row(frame(TEXT, b'{"type":"\xf4\x90\x80\x80"}'), Closed(1007)),
    "UTF-16": row(frame(TEXT, BEAT.encode("utf-16")), Closed(1007)),
    "a character in two fragments": row(
        frame(TEXT, b'{"type":"hub:heartbeat","id":"\xe6', fin=False) + frame(CONTINUATION, b'\xbc\xa2"}'), ALIVE
    ),
    "before hub:connect": row(frame(TEXT, b"\xff"), Closed(1007), stage=OPENED),
}


# --- the envelope -------------------------------------------------------------------------------------------------------------

ENVELOPE = {
    "no type": row('{"payload":{}}', NO_ENVELOPE),
    "an empty type": row(said(""), NO_ENVELOPE),
    "a type of null": row(said(None), NO_ENVELOPE),
    "a type of a number": row(said(7), NO_ENVELOPE),
    "a type of a list": row(said(["hub:heartbeat"]), NO_ENVELOPE),
    "a type of 10,000 characters": row(said("x" * 10_000), NO_ENVELOPE),
    "a type with NUL": row(said("hub:heartbeat\0"), refused("unknown_type")),
    "a type in upper case": row(said("HUB:HEARTBEAT"), refused("unknown_type")),
    "a type with a space": row(said(" hub:heartbeat"), refused("unknown_type")),
    "a type with a look-alike": row(said("hub:h\u0435\u0430rtbeat"), refused("unknown_type")),
    "an application's type": row(said("order:created", {"a": 1}), refused("unknown_type")),
    "an unknown type of the hub": row(said("hub:shutdown", {}), refused("unknown_type")),
    "the type hub:": row(said("hub:"), refused("unknown_type")),
    "a type of Python": row(said("__class__"), refused("unknown_type")),
    "a reply": row(said("hub:connected", {"sessionId": "x"}), refused("unknown_type")),
    "an error": row(said("hub:error", {"code": "internal_error"}), refused("unknown_type")),
    "an id of a number": row(said("hub:heartbeat", id=7), NO_ENVELOPE),
    "an id of an object": row(said("hub:heartbeat", id={}), NO_ENVELOPE),
    "an id too long": row(said("hub:heartbeat", id="x" * 257), NO_ENVELOPE),
    "from of a number": row(said("hub:heartbeat", from_=7), NO_ENVELOPE),
    "from too long": row(said("hub:heartbeat", from_="x" * 10_000), NO_ENVELOPE),
    "to of a list": row(said("hub:heartbeat", to=[HUB]), NO_ENVELOPE),
    "a timestamp below zero": row(said("hub:heartbeat", timestamp=-1), NO_ENVELOPE),
    "a timestamp of zero": row(said("hub:heartbeat", timestamp=0), NO_ENVELOPE),
    "a timestamp of text": row(said("hub:heartbeat", timestamp="1"), NO_ENVELOPE),
    "a timestamp of NaN": row('{"type":"hub:heartbeat","timestamp":NaN}', NOT_JSON),
    "a timestamp of true": row(said("hub:heartbeat", timestamp=True), NO_ENVELOPE),
    "a timestamp beyond time": row(said("hub:heartbeat", timestamp=1e308), NO_ENVELOPE),
    "a ttl below zero": row(said("hub:heartbeat", ttl=-1), NO_ENVELOPE),
    "a ttl of text": row(said("hub:heartbeat", ttl="forever"), NO_ENVELOPE),
    "a ttl beyond time": row(said("hub:heartbeat", ttl=1e308), NO_ENVELOPE),
    "a correlationId of an object": row(said("hub:heartbeat", correlationId={"a": 1}), NO_ENVELOPE),
    "a pattern of a number": row(said("hub:heartbeat", pattern=1), NO_ENVELOPE),
    "metadata of a list": row(said("hub:heartbeat", metadata=[1, 2]), ALIVE),
    "no payload": row('{"type":"hub:subscribe"}', refused("missing_topic"), stage=MEMBER),
    "a payload of null": row(said("hub:subscribe", None), refused("missing_topic"), stage=MEMBER),
    "a payload of a list": row(said("hub:heartbeat", []), NO_PAYLOAD),
    "a payload of text": row(said("hub:heartbeat", "{}"), NO_PAYLOAD),
    "a payload of a number": row(said("hub:heartbeat", 0), NO_PAYLOAD),
    "a payload of true": row(said("hub:heartbeat", True), NO_PAYLOAD),
}


# --- the state of a session ---------------------------------------------------------------------------------------------------

WRONG_VERSION = (refused("version_mismatch", "version_mismatch"), Closed(4005))
NOBODY = refused("not_registered", "unauthorized")

STATE = {
    **{f"{kind} before hub:connect": row(said(kind, {}), STRANGER, stage=OPENED) for kind in COMMANDS if kind != "hub:connect"},
    "an unknown type before hub:connect": row(said("hub:shutdown"), refused("unknown_type"), stage=OPENED),
    "no JSON before hub:connect": row("hello", NOT_JSON, stage=OPENED),
    "hub:connect twice": row(said("hub:connect", {"version": "1.0"}), refused("already_connected")),
    "hub:connect in the other dialect afterwards": row(
        said("hub:connect", None, metadata={"protocolVersion": "0.1.0"}), refused("already_connected")
    ),
    "hub:connect with another version afterwards": row(said("hub:connect", {"version": "2.0"}), refused("already_connected")),
    "an empty version": row(said("hub:connect", {"version": ""}), *WRONG_VERSION, stage=OPENED),
    "version 2.0": row(said("hub:connect", {"version": "2.0"}), *WRONG_VERSION, stage=OPENED),
    "version 1": row((said("hub:connect", {"version": "1"}), BEAT), reply("hub:connected"), ALIVE, stage=OPENED),
    "a version of 1,000 digits": row(said("hub:connect", {"version": "9" * 1_000}), *WRONG_VERSION, stage=OPENED),
    "a version of a wide digit": row(said("hub:connect", {"version": "\uff11.0"}), *WRONG_VERSION, stage=OPENED),
    "a version of a number": row(said("hub:connect", {"version": 1.0}), NO_PAYLOAD, stage=OPENED),
    "a version of null": row(said("hub:connect", {"version": None}), NO_PAYLOAD, stage=OPENED),
    "a token of an object": row(said("hub:connect", {"jwt": {}}), NO_PAYLOAD, stage=OPENED),
    "an unknown version of the other dialect": row(
        said("hub:connect", None, metadata={"protocolVersion": "7.0"}), *WRONG_VERSION, stage=OPENED
    ),
    "both dialects at once": row(
        (said("hub:connect", {"version": "1.0"}, metadata={"protocolVersion": "0.1.0"}), BEAT),
        reply("hub:connected", maxMessageSize=MEBIBYTE),
        ALIVE,
        stage=OPENED,
    ),
    "metadata of a list in hub:connect": row(
        (said("hub:connect", {"version": "1.0"}, metadata=["0.1.0"]), BEAT), reply("hub:connected"), ALIVE, stage=OPENED
    ),
    "a protocolVersion of an object": row(
        (said("hub:connect", {"version": "1.0"}, metadata={"protocolVersion": {}}), BEAT),
        reply("hub:connected"),
        ALIVE,
        stage=OPENED,
    ),
    "subscribe before register": row(said("hub:subscribe", {"topic": "t"}), NOBODY),
    "publish before register": row(said("hub:publish", {"topic": "t", "type": "x"}), NOBODY),
    "send before register": row(said("hub:send", {"to": INNOCENT, "type": "x"}), NOBODY),
    "broadcast before register": row(said("hub:broadcast", {"type": "x"}), NOBODY),
    "renew before register": row(said("hub:renew", {"renewalToken": "x"}), NOBODY),
    "unregister before register": row(said("hub:unregister", {}), NOBODY),
    "unsubscribe before register": row(said("hub:unsubscribe", {"topic": "t"}), NOBODY),
    "ack before register": row(said("hub:ack", {"messageId": "x"}), NOBODY),
    "publish after unregister": row(
        (said("hub:unregister", {}), said("hub:publish", {"topic": "t", "type": "x"})),
        reply("hub:unregistered"),
        NOBODY,
        stage=MEMBER,
    ),
    "more after hub:disconnect": row(
        (said("hub:disconnect", {}), BEAT, said("hub:publish", {"topic": "calm", "type": "late"}), said("hub:disconnect", {})),
        reply("hub:disconnect_ack"),
        Closed(1000),
        stage=MEMBER,
    ),
    "hub:disconnect with a reason of an object": row(said("hub:disconnect", {"reason": {}}), NO_PAYLOAD),
    "resume without pause": row(said("hub:resume", {}), reply("hub:flow", paused=False)),
    "pause 100 times": row(
        (*[said("hub:pause", {})] * 100, said("hub:resume", {})),
        *[reply("hub:flow", paused=True)] * 100,
        reply("hub:flow", paused=False),
    ),
    "a new token where none is asked for": row(said("hub:refresh_token", {"token": "x" * 10_000}), reply("hub:token_refreshed")),
    "a new token of null": row(said("hub:refresh_token", {"token": None}), NO_PAYLOAD),
}


# --- who somebody is ----------------------------------------------------------------------------------------------------------

SPOOFED = refused("from_mismatch", "unauthorized")
BAD_ADDRESS = refused("invalid_address")
WRONG_ACTOR = refused("wrong_actor", "unauthorized")
RESERVED = refused("reserved_address", "unauthorized")


def register(address: object, **fields: object) -> str:
    return said("hub:register", {"actorAddress": address, "capabilities": ["x"], **fields})


IDENTITY = {
    "a live actor's name in from": row(said("hub:publish", {"topic": "t", "type": "x"}, from_=INNOCENT), SPOOFED, stage=MEMBER),
    "a live actor's name in from of a send": row(
        said("hub:send", {"to": INNOCENT, "type": "x"}, from_=INNOCENT), SPOOFED, stage=MEMBER
    ),
    "the hub's name in from": row(said("hub:publish", {"topic": "t", "type": "x"}, from_=HUB), SPOOFED, stage=MEMBER),
    "the hub's name in from of hub:connect": row(
        (said("hub:connect", {"version": "1.0"}, from_=HUB), BEAT), reply("hub:connected"), ALIVE, stage=OPENED
    ),
    "an empty from": row(said("hub:heartbeat", {}, from_=""), SPOOFED, stage=MEMBER),
    "the hub's address": row(register(HUB), RESERVED),
    "everybody's address": row(register(EVERYONE), RESERVED),
    "an address in upper case": row(register("@(Browser/UI)"), BAD_ADDRESS),
    "an empty address": row(register(""), BAD_ADDRESS),
    "an address of 10,000 characters": row(register(f"@(a/{'x' * 10_000})"), BAD_ADDRESS),
    "an address with a line break": row(register("@(a/b)\n"), BAD_ADDRESS),
    "an address with NUL": row(register("@(a/b\0)"), BAD_ADDRESS),
    "an address with a look-alike": row(register("@(innocent/r\u0435ader)"), BAD_ADDRESS),
    "an address of wide letters": row(register("@(\uff41/\uff42)"), BAD_ADDRESS),
    "an address of foreign digits": row(register("@(a/٣)"), BAD_ADDRESS),
    "an address without a name": row(register("@(a/)"), BAD_ADDRESS),
    "an address of three parts": row(register("@(a/b/c)"), BAD_ADDRESS),
    "an address that climbs": row(register("@(../../etc)"), BAD_ADDRESS),
    "an address of null": row(register(None), NO_PAYLOAD),
    "an address of a number": row(register(7), NO_PAYLOAD),
    "two addresses": row(register("@(hostile/two)"), refused("already_registered"), stage=MEMBER),
    "somebody else's address beside one's own": row(register(INNOCENT), refused("already_registered"), stage=MEMBER),
    "a renewal with somebody else's token": row(
        said("hub:renew", {"renewalToken": TOKEN}), refused("wrong_renewal_token", "unauthorized"), stage=MEMBER
    ),
    "somebody else's renewal with their token": row(
        said("hub:renew", {"actorAddress": INNOCENT, "renewalToken": TOKEN}), WRONG_ACTOR, stage=MEMBER
    ),
    "a renewal with an empty token": row(
        said("hub:renew", {"renewalToken": ""}), refused("wrong_renewal_token", "unauthorized"), stage=MEMBER
    ),
    "a renewal with a token that is no ASCII": row(
        said("hub:renew", {"renewalToken": "漢" * 10_000}), refused("wrong_renewal_token", "unauthorized"), stage=MEMBER
    ),
    "a renewal without a token": row(said("hub:renew", {}), NO_PAYLOAD, stage=MEMBER),
    "somebody else unregistered": row(said("hub:unregister", {"actorAddress": INNOCENT}), WRONG_ACTOR, stage=MEMBER),
    "the hub unregistered": row(said("hub:unregister", {"actorAddress": HUB}), WRONG_ACTOR, stage=MEMBER),
    "ids acknowledged that were never sent": row(
        said("hub:ack", {"messageIds": ["a", "a", "b", ""]}), reply("hub:acked", unknown=["a", "b", ""]), stage=MEMBER
    ),
    "1,001 ids acknowledged": row(said("hub:ack", {"messageIds": [str(n) for n in range(1_001)]}), NO_PAYLOAD, stage=MEMBER),
    "nothing acknowledged": row(said("hub:ack", {}), refused("missing_message_id"), stage=MEMBER),
    "numbers acknowledged": row(said("hub:ack", {"messageIds": [1]}), NO_PAYLOAD, stage=MEMBER),
    "somebody else's subscription ended": row(
        said("hub:unsubscribe", {"subscriptionId": SUBSCRIPTION}), refused("unknown_subscription"), stage=MEMBER
    ),
    "somebody else's topic ended": row(
        said("hub:unsubscribe", {"topic": "calm"}), reply("hub:unsubscribed", topic="calm"), stage=MEMBER
    ),
}


# --- topics -------------------------------------------------------------------------------------------------------------------

BAD_TOPIC, NO_TOPIC, WILDCARD = refused("invalid_topic"), refused("missing_topic"), refused("wildcard_topic")

_NO_TOPICS: dict[str, object] = {
    "empty": "",
    "of 257 characters": "t" * 257,
    "of 500,000 characters": "t/" * 250_000,
    "with dots": "a.b",
    "with a space": "a b",
    "with a star": "a/*",
    "with a line break": "a\n",
    "with NUL": "a\0b",
    "beyond ASCII": "größe",
    "with a look-alike": "c\u0430lm",
    "with wide letters": "\uff43\uff41\uff4c\uff4d",
    "of $SYS": "$SYS/broker",
    "that climbs": "../../etc/passwd",
    "with a backslash": "a\\b",
    "with a percent": "a%2Fb",
    "with a question mark": "a?b",
    "of a number": 7,
    "of an object": {"a": 1},
    "of a list": ["a"],
    "of true": True,
}
"""What can neither be subscribed nor published to."""
_NO_PATTERNS = {
    "a # in the middle": "a/#/b",
    "a # at the beginning": "#/a",
    "a + behind letters": "a+",
    "a # behind letters": "a#",
    "a + and a #": "+#",
    "two +": "++",
    "two #": "##",
    "a # twice": "#/#",
    "a + in a word": "a/b+c/d",
}

TOPICS = {
    **{
        f"subscribe to a topic {name}": row(said("hub:subscribe", {"topic": topic}), BAD_TOPIC, stage=MEMBER)
        for name, topic in _NO_TOPICS.items()
    },
    **{
        f"publish to a topic {name}": row(said("hub:publish", {"topic": topic, "type": "x"}), BAD_TOPIC, stage=MEMBER)
        for name, topic in _NO_TOPICS.items()
    },
    **{
        f"subscribe to {name}": row(said("hub:subscribe", {"topic": pattern}), BAD_TOPIC, stage=MEMBER)
        for name, pattern in _NO_PATTERNS.items()
    },
    **{
        f"publish to {pattern}": row(said("hub:publish", {"topic": pattern, "type": "x"}), WILDCARD, stage=MEMBER)
        for pattern in ("#", "+", "a/#", "+/a", "calm/#")
    },
    "subscribe to null": row(said("hub:subscribe", {"topic": None}), NO_TOPIC, stage=MEMBER),
    "publish to null": row(said("hub:publish", {"topic": None, "type": "x"}), NO_TOPIC, stage=MEMBER),
    "unsubscribe from nothing": row(said("hub:unsubscribe", {}), NO_TOPIC, stage=MEMBER),
    "unsubscribe from what never was": row(said("hub:unsubscribe", {"topic": "never"}), reply("hub:unsubscribed"), stage=MEMBER),
    "subscribe to //": row(said("hub:subscribe", {"topic": "//"}), reply("hub:subscribed", topic="//"), stage=MEMBER),
    "subscribe to +//#": row(said("hub:subscribe", {"topic": "+//#"}), reply("hub:subscribed"), stage=MEMBER),
    "publish to ////": row(
        said("hub:publish", {"topic": "/" * 256, "type": "x"}), reply("hub:delivery_ack", subscriberCount=0), stage=MEMBER
    ),
    "a pattern of 128 levels": row(said("hub:subscribe", {"topic": "+/" * 127 + "+"}), refused("too_many_levels"), stage=MEMBER),
    "durable of text": row(said("hub:subscribe", {"topic": "t", "durable": "yes"}), NO_PAYLOAD, stage=MEMBER),
    "presence of a number": row(said("hub:subscribe", {"topic": "t", "presence": 1}), NO_PAYLOAD, stage=MEMBER),
    "presence of a bad topic": row(said("hub:presence", {"topic": "a b"}), BAD_TOPIC),
    "facts of a pattern": row(said("hub:topic_info", {"topic": "#"}), WILDCARD),
    "a prefix of 10,000 characters": row(said("hub:list_topics", {"prefix": "x" * 10_000}), BAD_TOPIC),
    "a prefix beyond ASCII": row(said("hub:list_topics", {"prefix": "\U0010ffff"}), reply("hub:topic_list", total=0)),
    "topics from far away": row(said("hub:list_topics", {"offset": 2**53}), reply("hub:topic_list", topics=[])),
    "a position of text": row(said("hub:subscribe", {"topic": "t", "since": "yesterday"}), NO_PAYLOAD, stage=MEMBER),
    "a position of nothing": row(said("hub:subscribe", {"topic": "t", "since": {}}), NO_PAYLOAD, stage=MEMBER),
    "a position below all": row(
        said("hub:subscribe", {"topic": "kept/a", "since": {"epoch": "x", "offset": -2}}), NO_PAYLOAD, stage=MEMBER
    ),
    "a position beyond all": row(
        said("hub:subscribe", {"topic": "kept/a", "since": {"epoch": "x", "offset": 2**60}}), NO_PAYLOAD, stage=MEMBER
    ),
    "a position of an unknown history": row(
        said("hub:subscribe", {"topic": "kept/a", "since": {"epoch": "\0", "offset": 2**53}}),
        reply("hub:subscribed", recovered=False),
        stage=MEMBER,
    ),
    "an epoch of 10,000 characters": row(
        said("hub:subscribe", {"topic": "kept/a", "since": {"epoch": "x" * 10_000, "offset": 0}}), NO_PAYLOAD, stage=MEMBER
    ),
}


# --- messages -----------------------------------------------------------------------------------------------------------------

NO_TYPE = refused("missing_type")
EXPIRED = refused("message_expired", "message_expired")


def publish(data: str, topic: str = "t") -> str:
    """A publish of this very JSON."""
    return f'{{"type":"hub:publish","payload":{{"topic":"{topic}","type":"x","data":{data}}}}}'


PUBLISHED = reply("hub:delivery_ack", subscriberCount=0, delivered=True)

MESSAGES = {
    "no type": row(said("hub:publish", {"topic": "t"}), NO_TYPE, stage=MEMBER),
    "an empty type": row(said("hub:publish", {"topic": "t", "type": ""}), NO_TYPE, stage=MEMBER),
    "a type of null": row(said("hub:publish", {"topic": "t", "type": None}), NO_TYPE, stage=MEMBER),
    "a type of a number": row(said("hub:publish", {"topic": "t", "type": 7}), NO_TYPE, stage=MEMBER),
    "a type of an object": row(said("hub:publish", {"topic": "t", "type": {}}), NO_TYPE, stage=MEMBER),
    "a type of the hub's": row(
        said("hub:publish", {"topic": "t", "type": "hub:disconnect"}), refused("reserved_type"), stage=MEMBER
    ),
    "a type of the hub's in a send": row(
        said("hub:send", {"to": INNOCENT, "type": "hub:disconnect"}), refused("reserved_type"), stage=MEMBER
    ),
    "a type of the hub's in a broadcast": row(
        said("hub:broadcast", {"type": "hub:error"}), refused("reserved_type"), stage=MEMBER
    ),
    "a type too long": row(said("hub:publish", {"topic": "t", "type": "x" * 257}), refused("invalid_type"), stage=MEMBER),
    "no data": row(said("hub:publish", {"topic": "t", "type": "x"}), PUBLISHED, stage=MEMBER),
    "data 65 deep": row(publish(nested(65)), refused("too_deep"), stage=MEMBER),
    "data 900 deep": row(publish(nested(900, "{}")), refused("too_deep"), stage=MEMBER),
    "data 100,000 deep": row(publish(nested(100_000)), NOT_JSON, stage=MEMBER),
    "brackets in a text, which are not deep": row(publish('"' + "[" * 100_000 + '"'), PUBLISHED, stage=MEMBER),
    "200,000 lists side by side": row(publish("[" + "[]," * 200_000 + "[]]"), PUBLISHED, stage=MEMBER),
    "data with a surrogate alone": row(publish('"\\ud800 "'), NOT_JSON, stage=MEMBER),
    "data of NaN": row(publish("NaN"), NOT_JSON, stage=MEMBER),
    "data that ends the frame": row(
        publish('1},"type":"hub:disconnect","x":{"a":1'), reply("hub:disconnect_ack"), Closed(1000), stage=MEMBER
    ),
    "data of a name twice": row(publish('{"a":1,"a":2}'), PUBLISHED, stage=MEMBER),
    "expired": row(said("hub:publish", {"topic": "t", "type": "x"}, timestamp=1, ttl=1), EXPIRED, stage=MEMBER),
    "expired, into a log": row(said("hub:publish", {"topic": "kept/a", "type": "x"}, timestamp=1, ttl=1), EXPIRED, stage=MEMBER),
    "a ttl of zero, long ago": row(
        said("hub:publish", {"topic": "t", "type": "x"}, timestamp=1000, ttl=0), EXPIRED, stage=MEMBER
    ),
    "a ttl of zero, now": row(said("hub:publish", {"topic": "t", "type": "x"}, ttl=0), PUBLISHED, stage=MEMBER),
    "a ttl and a timestamp at the end of time": row(
        said("hub:publish", {"topic": "kept/a", "type": "x"}, timestamp=2**52, ttl=2**52), reply("hub:delivery_ack"), stage=MEMBER
    ),
    "a ttl beyond time": row(said("hub:publish", {"topic": "t", "type": "x"}, ttl=1e306), NO_ENVELOPE, stage=MEMBER),
    "the same id 100 times": row(
        tuple(said("hub:publish", {"topic": "t", "type": "x"}, id="again") for _ in range(100)),
        *[reply("hub:delivery_ack", messageId="again")] * 100,
        stage=MEMBER,
    ),
    "NUL into a log": row(publish('"a\\u0000b"', "kept/a"), reply("hub:delivery_ack"), stage=MEMBER),
    "an id of NUL into a log": row(
        said("hub:publish", {"topic": "kept/a", "type": "x\0y", "data": None}, id="\0"), reply("hub:delivery_ack"), stage=MEMBER
    ),
    "an id of characters beyond ASCII into a log": row(
        said("hub:publish", {"topic": "kept/a", "type": "漢" * 256, "data": "🙂"}, id="🙂" * 256),
        reply("hub:delivery_ack"),
        stage=MEMBER,
    ),
    "nearly a mebibyte into a log": row(
        lambda: publish(f'"{"x" * 1_000_000}"', "kept/a"), reply("hub:delivery_ack"), stage=MEMBER
    ),
    "a number beyond all, which ends some readers": row(publish("[1e999]"), refused("huge_number"), stage=MEMBER),
    "a number of 5,000 digits, which ends others": row(publish("9" * 5_000, "kept/a"), refused("huge_number"), stage=MEMBER),
    "send with a number beyond all": row(
        f'{{"type":"hub:send","payload":{{"to":"{INNOCENT}","type":"x","data":{{"a":-1e999}}}}}}',
        refused("huge_number"),
        stage=MEMBER,
    ),
    "send to nobody": row(said("hub:send", {"type": "x"}), refused("missing_to"), stage=MEMBER),
    "send to an empty address": row(said("hub:send", {"to": "", "type": "x"}), refused("missing_to"), stage=MEMBER),
    "send to a stranger": row(said("hub:send", {"to": "@(no/body)", "type": "x"}), reply("hub:unknown_actor"), stage=MEMBER),
    "send to garbage": row(said("hub:send", {"to": "\0" * 1_000, "type": "x"}), reply("hub:unknown_actor"), stage=MEMBER),
    "send to a number": row(said("hub:send", {"to": 7, "type": "x"}), NO_PAYLOAD, stage=MEMBER),
    "send with metadata of a list": row(
        said("hub:send", {"to": INNOCENT, "type": "x"}, metadata=[1]), refused("invalid_metadata"), stage=MEMBER
    ),
    "send with metadata too large": row(
        said("hub:send", {"to": INNOCENT, "type": "x"}, metadata={"a": "x" * 10_000}), refused("metadata_too_large"), stage=MEMBER
    ),
    "send with metadata too deep": row(
        f'{{"type":"hub:send","payload":{{"to":"{INNOCENT}","type":"x"}},"metadata":{{"a":{nested(100)}}}}}',
        refused("too_deep"),
        stage=MEMBER,
    ),
    "send with a number beyond all in metadata": row(
        f'{{"type":"hub:send","payload":{{"to":"{INNOCENT}","type":"x"}},"metadata":{{"a":1e999}}}}',
        refused("huge_number"),
        stage=MEMBER,
    ),
    "broadcast with metadata of text": row(
        said("hub:broadcast", {"type": "x"}, metadata="all"), refused("invalid_metadata"), stage=MEMBER
    ),
    "broadcast to a capability of a number": row(
        said("hub:broadcast", {"type": "x", "targetCapability": 7}), NO_PAYLOAD, stage=MEMBER
    ),
    "broadcast to a capability that nobody has": row(
        said("hub:broadcast", {"type": "x", "targetCapability": "\0"}), reply("hub:delivery_ack", deliveredCount=0), stage=MEMBER
    ),
}


# --- registration and discovery -----------------------------------------------------------------------------------------------

BAD_TTL, BAD_PATTERN = refused("invalid_ttl"), refused("invalid_pattern")
FOUND = "hub:discovery_result"

REGISTRY = {
    "no capabilities": row(register("@(a/b)", capabilities=[]), refused("missing_capabilities")),
    "capabilities of null": row(register("@(a/b)", capabilities=None), NO_PAYLOAD),
    "capabilities of text": row(register("@(a/b)", capabilities="x"), NO_PAYLOAD),
    "capabilities of numbers": row(register("@(a/b)", capabilities=[1]), NO_PAYLOAD),
    "1,000 capabilities": row(register("@(a/b)", capabilities=[str(n) for n in range(1_000)]), refused("too_many_capabilities")),
    "a capability of nothing": row(register("@(a/b)", capabilities=[""]), refused("invalid_capability")),
    "a capability of 10,000 characters": row(register("@(a/b)", capabilities=["x" * 10_000]), refused("invalid_capability")),
    "a ttl of zero": row(register("@(a/b)", ttl=0), BAD_TTL),
    "a ttl below zero": row(register("@(a/b)", ttl=-1), BAD_TTL),
    "a ttl of 999": row(register("@(a/b)", ttl=999), BAD_TTL),
    "a ttl of an hour and a bit": row(register("@(a/b)", ttl=3_600_001), BAD_TTL),
    "a ttl of 1e308": row(register("@(a/b)", ttl=1e308), BAD_TTL),
    "a ttl of text": row(register("@(a/b)", ttl="x"), NO_PAYLOAD),
    "a ttl of true": row(register("@(a/b)", ttl=True), NO_PAYLOAD),
    "a renewal with a ttl of zero": row(
        said("hub:renew", {"renewalToken": "x", "ttl": 0}), refused("wrong_renewal_token", "unauthorized"), stage=MEMBER
    ),
    "metadata of a list": row(register("@(a/b)", metadata=[]), NO_PAYLOAD),
    "metadata too large": row(register("@(a/b)", metadata={"a": "x" * 10_000}), refused("metadata_too_large")),
    "metadata too deep": row(
        f'{{"type":"hub:register","payload":{{"actorAddress":"@(a/b)","capabilities":["x"],"metadata":{{"a":{nested(100)}}}}}}}',
        refused("metadata_too_deep"),
    ),
    "metadata with a number of 100 digits": row(register("@(a/b)", metadata={"a": int("9" * 100)}), reply("hub:registered")),
    "metadata with a number of 100,000 digits": row(
        '{"type":"hub:register","payload":{"actorAddress":"@(a/b)","capabilities":["x"],"metadata":{"a":' + "9" * 100_000 + "}}}",
        NO_PAYLOAD,
    ),
    **{
        f"discover by the costly pattern {pattern}": row(said("hub:discover", {"pattern": pattern}), reply(FOUND, count=0))
        for pattern in ("(a+)+$", "^(a|a)*$", "(a|aa)+$", "(.*a){20}$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y")
    },
    **{
        f"discover by the bad pattern {pattern[:24]}": row(said("hub:discover", {"pattern": pattern}), BAD_PATTERN)
        for pattern in (
            "(",
            ")",
            "[",
            "[z-a]",
            "*",
            "a**",
            "a{2,1}",
            "a{9999}",
            "\\",
            "\\1",
            "(?=a)",
            "(?<a>b)",
            "((a{64}){64}){64}",
            "(" * 200 + ")" * 200,
            "x" * 257,
        )
    },
    "discover by a pattern of NUL": row(said("hub:discover", {"pattern": "\0"}), reply(FOUND, count=0)),
    "discover by a pattern of a number": row(said("hub:discover", {"pattern": 7}), NO_PAYLOAD),
    **{
        f"discover at most {limit}": row(said("hub:discover", {"limit": limit}), NO_PAYLOAD)
        for limit in (0, -1, 1_001, 10**9, 1.5, "all")
    },
    "list at most 1,001": row(said("hub:list_actors", {"limit": 1_001}), NO_PAYLOAD),
    "discover from far away": row(said("hub:discover", {"offset": 2**53}), reply(FOUND, count=0, hasMore=False)),
    "discover from below zero": row(said("hub:discover", {"offset": -1}), NO_PAYLOAD),
    "discover from beyond numbers": row(said("hub:discover", {"offset": 10**30}), NO_PAYLOAD),
    "discover by nested metadata": row(said("hub:discover", {"metadata": {"a": {"b": [1, {"c": None}]}}}), reply(FOUND, count=0)),
    "discover by metadata too large": row(said("hub:discover", {"metadata": {"a": "x" * 10_000}}), refused("metadata_too_large")),
    "discover by 1,000 capabilities": row(
        said("hub:discover", {"capabilities": [str(n) for n in range(1_000)]}), refused("too_many_capabilities")
    ),
}


DIALECT = {
    "register without a payload": row(said("hub:register", None), NO_PAYLOAD, stage=ORIGINAL),
    "a ttl of 1e308 seconds": row(register("@(a/b)", ttlSeconds=1e308), BAD_TTL, stage=ORIGINAL),
    "a ttl of zero seconds": row(register("@(a/b)", ttlSeconds=0), BAD_TTL, stage=ORIGINAL),
    "a ttl of text": row(register("@(a/b)", ttlSeconds="x"), NO_PAYLOAD, stage=ORIGINAL),
    "discover at most 101": row(said("hub:discover", {"limit": 101}), NO_PAYLOAD, stage=ORIGINAL),
    "discover by 256 stars": row(
        said("hub:discover", {"pattern": "*a" * 128}), reply("hub:discovered", actors=[]), stage=ORIGINAL
    ),
    "discover by 257 stars": row(said("hub:discover", {"pattern": "*" * 257}), BAD_PATTERN, stage=ORIGINAL),
    "discover by a capability of a list": row(said("hub:discover", {"capability": ["x"]}), NO_PAYLOAD, stage=ORIGINAL),
    "an answer to nothing": row((said("hub:unsubscribe", {"topic": "t"}), BEAT), NOBODY, ALIVE, stage=ORIGINAL),
    "no JSON": row("{", NOT_JSON, stage=ORIGINAL),
    "connect again": row(said("hub:connect", {"version": "1.0"}), refused("already_connected"), stage=ORIGINAL),
}

DURABLE = {
    **{
        f"of {name}": row(
            (said("hub:subscribe", {"topic": topic, "durable": True}), said("hub:unregister", {})),
            reply("hub:subscribed", durable=True),
            reply("hub:unregistered"),
            stage=MEMBER,
        )
        for name, topic in {
            "everything": "#",
            "256 slashes": "/" * 256,
            "the longest topic": "x" * 256,
            "what looks like a name of the broker": "hub",
            "empty levels": "+//#",
        }.items()
    },
    "of a bad topic": row(said("hub:subscribe", {"topic": "a b", "durable": True}), BAD_TOPIC, stage=MEMBER),
    "of a position too": row(
        (
            said("hub:subscribe", {"topic": "t", "durable": True, "since": {"epoch": "x", "offset": 5}}),
            said("hub:unregister", {}),
        ),
        reply("hub:subscribed", durable=True),
        reply("hub:unregistered"),
        stage=MEMBER,
    ),
    "begun and ended 50 times": row(
        (said("hub:subscribe", {"topic": "t", "durable": True}), said("hub:unsubscribe", {"topic": "t"})) * 50,
        *(reply("hub:subscribed", durable=True), reply("hub:unsubscribed")) * 50,
        stage=MEMBER,
    ),
}


# --- WebSocket itself ---------------------------------------------------------------------------------------------------------

BROKEN = Closed(1002)


def tiny_fragments(count: int) -> bytes:
    """One heartbeat in so many fragments."""
    text = BEAT.encode().ljust(count)
    parts = [frame(CONTINUATION, text[at : at + 1], fin=at == count - 1) for at in range(1, count)]
    return frame(TEXT, text[:1], fin=False) + b"".join(parts)


def fragments(size: int) -> Iterator[bytes]:
    """One text in parts of 64 KiB, never finished; the last is only announced."""
    part = b" " * (64 * 1024)
    yield frame(TEXT, part, fin=False)
    for _ in range(size // len(part) - 2):
        yield frame(CONTINUATION, part, fin=False)
    yield frame(CONTINUATION, part, fin=False)[:14]


WEBSOCKET = {
    **{f"reserved bit {bit}": row(frame(TEXT, b"{}", rsv=bit), BROKEN) for bit in (1, 2, 4)},
    **{f"reserved opcode {opcode}": row(frame(opcode, b"{}"), BROKEN) for opcode in (3, 7, 11, 15)},
    "a ping in fragments": row(frame(PING, b"x", fin=False), BROKEN),
    "a close in fragments": row(frame(CLOSE, b"", fin=False), BROKEN),
    "a ping of 125 bytes": row(frame(PING, b"x" * 125), Pong(b"x" * 125)),
    "a ping of 126 bytes": row(frame(PING, b"x" * 126)[:2], BROKEN),
    "a pong that nobody asked for": row(frame(PONG, b"x") + frame(TEXT, BEAT.encode()), ALIVE),
    "a close of one byte": row(frame(CLOSE, b"x"), BROKEN),
    "a close with the code 0": row(frame(CLOSE, struct.pack("!H", 0)), BROKEN),
    "a close with the code 999": row(frame(CLOSE, struct.pack("!H", 999)), BROKEN),
    "a close with the code 1005": row(frame(CLOSE, struct.pack("!H", 1005)), BROKEN),
    "a close with the code 2999": row(frame(CLOSE, struct.pack("!H", 2999)), BROKEN),
    "a close with a reason that is no text": row(frame(CLOSE, struct.pack("!H", 1000) + b"\xff"), Closed(1007)),
    "a close with the longest reason": row(frame(CLOSE, struct.pack("!H", 1000) + b"x" * 123), Closed(1000)),
    "a close, and more behind it": row(frame(CLOSE, struct.pack("!H", 1000)) + frame(TEXT, BEAT.encode()) * 100, Closed(1000)),
    "a continuation of nothing": row(frame(CONTINUATION, b"{}"), BROKEN),
    "the end of nothing": row(frame(CONTINUATION), BROKEN),
    "a text inside another": row(frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"), BROKEN),
    "the beginning of a text inside another": row(frame(TEXT, b"{", fin=False) + frame(TEXT, b"}", fin=False), BROKEN),
    "pings inside a text": row(
        frame(TEXT, BEAT[:5].encode(), fin=False) + frame(PING, b"in") * 3 + frame(CONTINUATION, BEAT[5:].encode()),
        Pong(b"in", 3),
        ALIVE,
    ),
    # A server should close here. Masks are for what lies between the two, so that to hear it harms nobody.
    "a frame without a mask": row(frame(TEXT, BEAT.encode(), mask=None), ALIVE),
    "100,000 fragments of one byte": row(lambda: tiny_fragments(100_000), ALIVE),
    "100,000 fragments of nothing": row(
        lambda: frame(TEXT, fin=False) + frame(CONTINUATION, fin=False) * 100_000 + frame(CONTINUATION, BEAT.encode()), ALIVE
    ),
    "fragments beyond the limit": row(lambda: b"".join(fragments(MEBIBYTE + 128 * 1024))[:-14] + frame(CONTINUATION), TOO_LARGE),
    "fragments without end": row(lambda: b"".join(fragments(BEYOND)), Closed(1009)),
    "a binary frame": row(frame(BINARY, BEAT.encode()), refused("binary_frame")),
    "an empty binary frame": row(frame(BINARY), refused("binary_frame")),
    "a binary frame before hub:connect": row(frame(BINARY, b"\0" * 1_000), refused("binary_frame"), stage=OPENED),
    "an empty text frame": row(frame(TEXT), NOT_JSON),
    "half a header": row(frame(TEXT, b"x" * 1_000)[:1]),
    "half a frame": row(frame(TEXT, BEAT.encode())[:20]),
    "half a fragmented text": row(frame(TEXT, b"x" * 100_000, fin=False)),
    "HTTP": row(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", BROKEN),
    "TLS": row(bytes.fromhex("16030100c8010000c40303") + bytes(190), BROKEN),
    "zeros": row(bytes(64), BROKEN),
}

FLOODS = {
    "1,000 pings without reading": row(lambda: frame(PING, b"p" * 125) * 1_000, Pong(b"p" * 125, 1_000)),
    "20,000 pings without reading": row(lambda: frame(PING, b"p" * 125) * 20_000, Many((Pong(b"p" * 125),)), Closed(4004)),
    "1,000 pongs": row(lambda: frame(PONG, b"p" * 125) * 1_000 + frame(TEXT, BEAT.encode()), ALIVE),
    "20,000 pongs": row(lambda: frame(PONG, b"p" * 125) * 20_000, Closed(4004)),
    "messages beyond the rate": row(
        lambda: frame(TEXT, BEAT.encode()) * 20_000,
        Many((ALIVE, refused("rate_limited", "rate_limited"))),
        Closed(4004),
    ),
    "garbage beyond the rate": row(
        lambda: frame(TEXT, b"x") * 20_000,
        Many((NOT_JSON, refused("rate_limited", "rate_limited"))),
        Closed(4004),
    ),
    "binary frames beyond the rate": row(
        lambda: frame(BINARY, b"x") * 20_000,
        Many((refused("binary_frame"), refused("rate_limited", "rate_limited"))),
        Closed(4004),
    ),
    "empty frames beyond the rate": row(
        lambda: frame(TEXT) * 20_000,
        Many((NOT_JSON, refused("rate_limited", "rate_limited"))),
        Closed(4004),
    ),
    "garbage before hub:connect, beyond the rate": row(
        lambda: frame(TEXT, b"x") * 20_000,
        Many((NOT_JSON, refused("rate_limited", "rate_limited"))),
        Closed(4004),
        stage=OPENED,
    ),
    "one subscription more than may be": row(
        tuple(said("hub:subscribe", {"topic": f"many/{n}"}) for n in range(1_001)),
        *[reply("hub:subscribed")] * 1_000,
        refused("too_many_subscriptions", "rate_limited"),
        stage=MEMBER,
    ),
    "more for itself than may wait": row(
        (
            said("hub:subscribe", {"topic": "self"}),
            said("hub:pause", {}),
            *[said("hub:publish", {"topic": "self", "type": "x", "data": "x" * 100_000})] * 12,
        ),
        Many((reply("hub:subscribed"), reply("hub:flow"), reply("hub:delivery_ack")), each=False),
        Closed(4003),
        stage=MEMBER,
    ),
    "one topic subscribed 1,000 times": row(
        tuple(said("hub:subscribe", {"topic": "same"}) for _ in range(1_000)),
        *[reply("hub:subscribed")] * 1_000,
        stage=MEMBER,
    ),
    "one address registered 1,000 times": row(
        tuple(register(HOSTILE) for _ in range(1_000)), *[reply("hub:registered")] * 1_000, stage=MEMBER
    ),
}

ROWS = {
    **named("json", JSON),
    **named("size", SIZES),
    **named("utf-8", UTF8),
    **named("envelope", ENVELOPE),
    **named("state", STATE),
    **named("identity", IDENTITY),
    **named("topic", TOPICS),
    **named("message", MESSAGES),
    **named("registry", REGISTRY),
    **named("dialect", DIALECT),
    **named("durable", DURABLE),
    **named("websocket", WEBSOCKET),
    **named("flood", FLOODS),
}


# --- handshakes ---------------------------------------------------------------------------------------------------------------


def handshake(line: str = "GET /ws HTTP/1.1", **changed: str | None) -> bytes:
    """A handshake with some of its headers changed, or left out. `_` in a name stands for `-`."""
    fields: dict[str, str | None] = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        **changed,
    }
    lines = [line, *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items() if value is not None)]
    return "\r\n".join([*lines, "", ""]).encode()


HANDSHAKES: dict[str, tuple[bytes, int | None]] = {
    "without a key": (handshake(Sec_WebSocket_Key=None), 400),
    "with an empty key": (handshake(Sec_WebSocket_Key=""), 400),
    "with a key that is too short": (handshake(Sec_WebSocket_Key="AAAA"), 400),
    "with a key that is no base64": (handshake(Sec_WebSocket_Key="!" * 24), 400),
    "with a key of 4,000 characters": (handshake(Sec_WebSocket_Key="A" * 4_000), 400),
    "of version 12": (handshake(Sec_WebSocket_Version="12"), 400),
    "without a version": (handshake(Sec_WebSocket_Version=None), 400),
    "of a version that is no number": (handshake(Sec_WebSocket_Version="new"), 400),
    "without Upgrade": (handshake(Upgrade=None), 426),
    "to another protocol": (handshake(Upgrade="h2c"), 426),
    "without Connection": (handshake(Connection="keep-alive"), 400),
    "by POST": (handshake("POST /ws HTTP/1.1", Content_Length="0"), 405),
    "by an unknown method": (handshake("HACK /ws HTTP/1.1"), 400),
    "of HTTP/1.0": (handshake("GET /ws HTTP/1.0"), 101),
    "of a stranger's page": (handshake(Origin="https://evil.example.com"), 403),
    "to another host": (handshake(Host="evil.example.com"), 421),
    "to another path": (handshake("GET /ws/../etc HTTP/1.1"), 404),
    "with a header of 100,000 characters": (handshake(X="x" * 100_000), 431),
    "with a line break inside": (handshake(Sec_WebSocket_Protocol="a\r\n b"), 400),
    "that is garbage": (bytes(range(128, 256)) + b"\r\n\r\n", 400),
    "that is TLS": (bytes.fromhex("16030100c8010000c40303") + bytes(190), 400),
    "that is a frame": (frame(TEXT, BEAT.encode()), None),
    "that ends in the middle": (handshake()[:-20], None),
    "of one byte": (b"G", None),
}
"""What a client says instead of a handshake, and the status it is answered by; None for none as long as more may come."""
