"""What no honest client of the hub sends, as tables. Read them as the list of what the hub survives."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tests.integration.hub.hostile_requests import REQUESTS, register
from tests.integration.hub.hostile_row import (
    ALIVE,
    BEAT,
    HOSTILE,
    MEBIBYTE,
    MEMBER,
    NO_ENVELOPE,
    NO_PAYLOAD,
    NOT_JSON,
    OPENED,
    TOO_DEEP,
    TOO_LARGE,
    Closed,
    Many,
    Pong,
    named,
    nested,
    refused,
    reply,
    row,
    said,
)
from tests.integration.hub.wire import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, frame

TOO_LARGE_BY_FAR = Closed(1009, "message_too_large")
FLOODED = Closed(4004, "rate_limited")
BEYOND = 4 * MEBIBYTE
"""From here on a frame is not even read."""


# --- JSON ---------------------------------------------------------------------------------------------------------------------


def padded(size: int, filler: str = "x") -> str:
    """A heartbeat of so many bytes, filled up in a field that nobody reads."""
    shell = '{"type":"hub:heartbeat","payload":{"pad":""}}'
    count, rest = divmod(size - len(shell), len(filler.encode()))
    return shell.replace('"pad":""', f'"pad":"{filler * count}{"x" * rest}"')


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
    "lists 1,000 deep": row(with_field(nested(1_000)), TOO_DEEP),
    "lists 100,000 deep": row(with_field(nested(100_000)), TOO_DEEP),
    "objects 100,000 deep": row(with_field(nested(100_000, of_objects=True)), TOO_DEEP),
    "lists that never end": row("[" * 500_000, NO_ENVELOPE),
    "a payload 100,000 deep": row(f'{{"type":"hub:heartbeat","payload":{nested(100_000, of_objects=True)}}}', TOO_DEEP),
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
    "5 MiB announced": row(struct.pack("!BBQ", 0x80 | TEXT, 0x80 | 127, 5 * MEBIBYTE), TOO_LARGE_BY_FAR),
    "5 MiB": row(lambda: padded(5 * MEBIBYTE), TOO_LARGE_BY_FAR),
    "the largest length there is": row(struct.pack("!BBQ", 0x80 | TEXT, 0x80 | 127, 2**63 - 1), TOO_LARGE_BY_FAR),
    "a negative length": row(struct.pack("!BBq", 0x80 | TEXT, 0x80 | 127, -1), TOO_LARGE_BY_FAR),
    "above the limit before hub:connect": row(lambda: padded(MEBIBYTE + 1), TOO_LARGE, stage=OPENED),
}

UTF8 = {
    "a byte that begins nothing": row(frame(TEXT, b'{"type":"\xff"}'), Closed(1007, "invalid_utf8")),
    "a continuation alone": row(frame(TEXT, b'{"type":"\x80"}'), Closed(1007, "invalid_utf8")),
    "a character cut off": row(frame(TEXT, b'{"type":"\xe6\xbc'), Closed(1007, "invalid_utf8")),
    "an overlong slash": row(frame(TEXT, b'{"type":"\xc0\xaf"}'), Closed(1007, "invalid_utf8")),
    "an overlong NUL": row(frame(TEXT, b'{"type":"\xc0\x80"}'), Closed(1007, "invalid_utf8")),
    "a surrogate as bytes": row(frame(TEXT, b'{"type":"\xed\xa0\x80"}'), Closed(1007, "invalid_utf8")),
    "beyond the last character": row(frame(TEXT, b'{"type":"\xf4\x90\x80\x80"}'), Closed(1007, "invalid_utf8")),
    "UTF-16": row(frame(TEXT, BEAT.encode("utf-16")), Closed(1007, "invalid_utf8")),
    "a character in two fragments": row(
        frame(TEXT, b'{"type":"hub:heartbeat","id":"\xe6', fin=False) + frame(CONTINUATION, b'\xbc\xa2"}'), ALIVE
    ),
    "before hub:connect": row(frame(TEXT, b"\xff"), Closed(1007, "invalid_utf8"), stage=OPENED),
}


# --- WebSocket itself ---------------------------------------------------------------------------------------------------------

BROKEN = Closed(1002, "protocol_error")


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
    "a close with the code 1006": row(frame(CLOSE, struct.pack("!H", 1006)), BROKEN),
    "a close with the code 5000": row(frame(CLOSE, struct.pack("!H", 5000)), BROKEN),
    "a close with the code 65535": row(frame(CLOSE, struct.pack("!H", 65535)), BROKEN),
    "a close with the code 2999": row(frame(CLOSE, struct.pack("!H", 2999)), BROKEN),
    "a close with a reason that is no text": row(frame(CLOSE, struct.pack("!H", 1000) + b"\xff"), Closed(1007, "invalid_utf8")),
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
    "a frame without a mask": row(frame(TEXT, BEAT.encode(), mask=None), BROKEN),
    "a ping without a mask": row(frame(PING, mask=None), BROKEN),
    "a close without a mask": row(frame(CLOSE, struct.pack("!H", 1000), mask=None), BROKEN),
    "a frame without a mask before hub:connect": row(frame(TEXT, BEAT.encode(), mask=None), BROKEN, stage=OPENED),
    "10,000 fragments of one byte": row(lambda: tiny_fragments(10_000), ALIVE),
    "10,000 fragments of nothing": row(
        lambda: frame(TEXT, fin=False) + frame(CONTINUATION, fin=False) * 10_000 + frame(CONTINUATION, BEAT.encode()), ALIVE
    ),
    "fragments beyond the limit": row(lambda: b"".join(fragments(MEBIBYTE + 128 * 1024))[:-14] + frame(CONTINUATION), TOO_LARGE),
    "fragments without end": row(lambda: b"".join(fragments(BEYOND)), TOO_LARGE_BY_FAR),
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
    "20,000 pings without reading": row(lambda: frame(PING, b"p" * 125) * 20_000, Many((Pong(b"p" * 125),)), FLOODED),
    "1,000 pongs": row(lambda: frame(PONG, b"p" * 125) * 1_000 + frame(TEXT, BEAT.encode()), ALIVE),
    "20,000 pongs": row(lambda: frame(PONG, b"p" * 125) * 20_000, FLOODED),
    "messages beyond the rate": row(
        lambda: frame(TEXT, BEAT.encode()) * 20_000,
        Many((ALIVE, refused("rate_limited", "rate_limited"))),
        FLOODED,
    ),
    "garbage beyond the rate": row(
        lambda: frame(TEXT, b"x") * 20_000,
        Many((NOT_JSON, refused("rate_limited", "rate_limited"))),
        FLOODED,
    ),
    "binary frames beyond the rate": row(
        lambda: frame(BINARY, b"x") * 20_000,
        Many((refused("binary_frame"), refused("rate_limited", "rate_limited"))),
        FLOODED,
    ),
    "empty frames beyond the rate": row(
        lambda: frame(TEXT) * 20_000,
        Many((NOT_JSON, refused("rate_limited", "rate_limited"))),
        FLOODED,
    ),
    "garbage before hub:connect, beyond the rate": row(
        lambda: frame(TEXT, b"x") * 20_000,
        Many((NOT_JSON, refused("rate_limited", "rate_limited"))),
        FLOODED,
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
        Closed(4003, "slow_reader"),
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
    **REQUESTS,
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
    "of version 12": (handshake(Sec_WebSocket_Version="12"), 426),
    "without a version": (handshake(Sec_WebSocket_Version=None), 426),
    "of a version that is no number": (handshake(Sec_WebSocket_Version="new"), 426),
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
