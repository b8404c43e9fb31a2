"""Requests that no honest client makes, as tables: well-formed frames that ask for what is not, for too much, or for others."""

from __future__ import annotations

from penstock.hub.core.names import EVERYONE, HUB
from tests.integration.hub.hostile_row import (
    ALIVE,
    ANONYMOUS,
    BEAT,
    INNOCENT,
    MEBIBYTE,
    MEMBER,
    NO_ENVELOPE,
    NO_PAYLOAD,
    NOT_JSON,
    OPENED,
    ORIGINAL,
    SUBSCRIPTION,
    TOKEN,
    Closed,
    named,
    nested,
    refused,
    reply,
    row,
    said,
)

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

GOODBYE = Closed(1000, "Client requested disconnect")
WRONG_VERSION = (refused("version_mismatch", "version_mismatch"), Closed(4005, "version_mismatch"))
NOBODY = refused("not_registered", "unauthorized")

STATE = {
    "subscribe before hub:connect": row(
        (said("hub:subscribe", {"topic": "t"}), BEAT), reply("hub:subscribed"), ALIVE, stage=ANONYMOUS
    ),
    "nothing in a subscribe before hub:connect": row(said("hub:subscribe", {}), refused("missing_topic"), stage=ANONYMOUS),
    "hub:connect after something else": row(
        (BEAT, said("hub:connect", {"version": "1.0"})), ALIVE, refused("already_connected"), stage=ANONYMOUS
    ),
    "durable without an address": row(
        said("hub:subscribe", {"topic": "t", "durable": True}), refused("anonymous", "unauthorized"), stage=ANONYMOUS
    ),
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
    "renew before register": row(said("hub:renew", {"renewalToken": "x"}), refused("not_registered", "unknown_actor")),
    "unregister before register": row(said("hub:unregister", {}), NOBODY),
    "unsubscribe before register": row(said("hub:unsubscribe", {"topic": "t"}), NOBODY),
    "ack before register": row(said("hub:ack", {"ackId": "x"}), NOBODY),
    "publish after unregister": row(
        (said("hub:unregister", {}), said("hub:publish", {"topic": "t", "type": "x"})),
        reply("hub:unregistered"),
        NOBODY,
        stage=MEMBER,
    ),
    "more after hub:disconnect": row(
        (said("hub:disconnect", {}), BEAT, said("hub:publish", {"topic": "calm", "type": "late"}), said("hub:disconnect", {})),
        reply("hub:disconnect_ack"),
        GOODBYE,
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
    "a live actor's name in the first from": row(
        said("hub:publish", {"topic": "t", "type": "x"}, from_=INNOCENT), reply("hub:delivery_ack"), stage=ANONYMOUS
    ),
    "the hub's name in the first from": row(said("hub:heartbeat", {}, from_=HUB), RESERVED, stage=OPENED),
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
        said("hub:ack", {"ackIds": ["a", "a", "b", ""]}), reply("hub:acked", unknown=["a", "b", ""]), stage=MEMBER
    ),
    "1,001 ids acknowledged": row(said("hub:ack", {"ackIds": [str(n) for n in range(1_001)]}), NO_PAYLOAD, stage=MEMBER),
    "nothing acknowledged": row(said("hub:ack", {}), refused("missing_ack_id"), stage=MEMBER),
    "numbers acknowledged": row(said("hub:ack", {"ackIds": [1]}), NO_PAYLOAD, stage=MEMBER),
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
    "data 900 deep": row(publish(nested(900, of_objects=True)), refused("too_deep"), stage=MEMBER),
    "data 100,000 deep": row(publish(nested(100_000)), refused("too_deep"), stage=MEMBER),
    "brackets in a text, which are not deep": row(publish('"' + "[" * 100_000 + '"'), PUBLISHED, stage=MEMBER),
    "200,000 lists side by side": row(publish("[" + "[]," * 200_000 + "[]]"), PUBLISHED, stage=MEMBER),
    "data with a surrogate alone": row(publish('"\\ud800 "'), NOT_JSON, stage=MEMBER),
    "data of NaN": row(publish("NaN"), NOT_JSON, stage=MEMBER),
    "data that ends the frame": row(
        publish('1},"type":"hub:disconnect","x":{"a":1'),
        reply("hub:disconnect_ack"),
        GOODBYE,
        stage=MEMBER,
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

REQUESTS = {
    **named("envelope", ENVELOPE),
    **named("state", STATE),
    **named("identity", IDENTITY),
    **named("topic", TOPICS),
    **named("message", MESSAGES),
    **named("registry", REGISTRY),
    **named("dialect", DIALECT),
    **named("durable", DURABLE),
}
