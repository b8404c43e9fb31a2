"""Direct messages and broadcasts, in both dialects."""

from __future__ import annotations

import pytest

from penstock.durations import SECOND
from penstock.hub.core import close_codes
from penstock.hub.core.identity import Identity
from penstock.hub.core.rules import HubRules
from tests.unit.hub.talk import HUB, Frame, Talk, pick

UUID = "5b3d6c1e-2f0a-4a7e-8f57-0c8f7f1f0c11"
A, B, C = "@(browser/a)", "@(browser/b)", "@(browser/c)"


def message(**more: object) -> Frame:
    return {"to": B, "type": "chat:line", "data": {"text": "hé\u2028"}, **more}


def test_a_message_is_forwarded_flat_with_its_sender_stamped() -> None:
    talk = Talk()
    sender, target, other = talk.connect(A), talk.connect(B), talk.connect(C)

    reply = talk.ask(sender, "hub:send", message(), id="s-1", pattern="ask", metadata={"trace": [1]})

    assert talk.heard(target) == [
        {
            "type": "chat:line",
            "from": A,
            "to": B,
            "payload": {"text": "hé\u2028"},
            "timestamp": talk.ms,
            "metadata": {"trace": [1], "forwarded": True, "via": HUB, "originalMessageId": "s-1"},
        }
    ]
    assert pick(reply, "type", "from", "to", "correlationId", "payload") == {
        "type": "hub:delivery_ack",
        "from": HUB,
        "to": A,
        "correlationId": "s-1",
        "payload": {"messageId": "s-1", "delivered": True, "timestamp": talk.ms},
    }
    assert talk.heard(other) == []


def test_clients_of_the_original_get_the_whole_envelope() -> None:
    talk = Talk(original=True)
    sender, target = talk.connect(A), talk.connect(B)

    reply = talk.ask(sender, "hub:send", message(), id=UUID, pattern="ask", ttl=1500, timestamp=talk.ms)

    (got,) = talk.heard(target)
    assert got.pop("id").startswith("id-")
    assert got == {
        "type": "chat:line",
        "from": A,
        "to": B,
        "payload": {"text": "hé\u2028"},
        "pattern": "tell",
        "correlationId": UUID,
        "timestamp": talk.ms,
        "ttl": 1500,
        "signature": None,
        "metadata": {"forwarded": True, "via": HUB, "originalMessageId": UUID},
    }
    assert (reply["type"], reply["payload"]) == (
        "hub:delivery_ack",
        {"messageId": UUID, "deliveredAt": talk.ms, "status": "delivered"},
    )


def test_both_dialects_talk_to_each_other() -> None:
    talk = Talk()
    one, other = talk.connect(A), talk.connect(B, original=True)

    talk.say(one, "hub:send", message())
    talk.say(other, "hub:send", message(to=A))

    assert [frame["ttl"] for frame in talk.heard(other) if frame["type"] == "chat:line"] == [None]
    assert [frame.get("ttl", "none") for frame in talk.heard(one) if frame["type"] == "chat:line"] == ["none"]


def test_the_target_may_be_named_by_the_envelope_and_may_be_oneself() -> None:
    talk = Talk()
    session = talk.connect(A)

    talk.say(session, "hub:send", {"type": "t", "data": 1}, to=A)

    assert [frame["type"] for frame in talk.heard(session)] == ["t", "hub:delivery_ack"]


def test_a_message_without_an_id_gets_one() -> None:
    talk = Talk()
    sender, target = talk.connect(A), talk.connect(B)

    reply = talk.ask(sender, "hub:send", message())

    (got,) = talk.heard(target)
    assert got["metadata"]["originalMessageId"] == reply["payload"]["messageId"]
    assert "correlationId" not in reply


def test_nobody_can_say_what_the_hub_says() -> None:
    talk = Talk()
    sender, target = talk.connect(A), talk.connect(B)
    forged = dict.fromkeys(
        ["forwarded", "via", "originalMessageId", "topic", "messageId", "offset", "epoch", "publication", "targetCapability"], "x"
    )

    talk.say(sender, "hub:send", message(), id="s", metadata=forged | {"mine": 1})
    talk.say(sender, "hub:send", message(), id="s", metadata=forged)

    metadata = [frame["metadata"] for frame in talk.heard(target)]
    stamped = {"forwarded": True, "via": HUB, "originalMessageId": "s"}
    assert metadata == [{"mine": 1} | stamped, stamped]


@pytest.mark.parametrize("pattern", [None, "ask", "tell"])
def test_who_asks_for_an_unknown_actor_is_told_and_who_tells_is_not(pattern: str | None) -> None:
    talk = Talk()
    sender, gone = talk.connect(A), talk.connect(B, ttl=1000)
    talk.now += SECOND

    talk.say(sender, "hub:send", message(), pattern=pattern, id="s")
    talk.say(sender, "hub:send", message(to=C), pattern=pattern, id="s")

    expected = [
        {
            "type": "hub:unknown_actor",
            "correlationId": "s",
            "payload": {"actorAddress": address, "message": said},
        }
        for address, said in ((B, "Actor registration expired"), (C, "Actor not registered with Signal Hub"))
    ]
    assert [pick(one, "type", "correlationId", "payload") for one in talk.heard(sender)] == (
        [] if pattern == "tell" else expected
    )
    assert talk.heard(gone) == []


def test_who_tells_is_not_answered() -> None:
    talk = Talk()
    sender, target = talk.connect(A), talk.connect(B)

    talk.say(sender, "hub:send", message(), pattern="tell")

    assert (talk.heard(sender), len(talk.heard(target))) == ([], 1)


def test_a_target_that_does_not_read_is_cut_off_and_its_sender_told() -> None:
    talk = Talk(HubRules(rate=None, max_outbox_messages=2))
    sender, target = talk.connect(A), talk.connect(B)
    for _ in range(2):
        assert talk.ask(sender, "hub:send", message())["type"] == "hub:delivery_ack"

    error = talk.refused(sender, "hub:send", message(), pattern="tell")

    assert (error["code"], error["details"]["reason"], error["details"]["retryable"]) == (
        "internal_error",
        "not_reachable",
        True,
    )
    assert (target.closing, talk.heard(target)) == (close_codes.SLOW_READER, [])


def test_direct_messages_that_are_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, Frame, Frame, str, str]] = [
        ("hub:send", {"type": "t"}, {}, "internal_error", "missing_to"),
        ("hub:send", {"to": "", "type": "t"}, {}, "internal_error", "missing_to"),
        ("hub:send", message(type=None), {}, "internal_error", "missing_type"),
        ("hub:send", message(type=""), {}, "internal_error", "missing_type"),
        ("hub:send", message(type="x" * 257), {}, "internal_error", "invalid_type"),
        ("hub:send", message(type="hub:error"), {}, "internal_error", "reserved_type"),
        ("hub:send", message(), {"metadata": [1]}, "internal_error", "invalid_metadata"),
        ("hub:send", message(), {"metadata": {"x": "x" * 8192}}, "internal_error", "metadata_too_large"),
        ("hub:send", message(), {"ttl": 1, "timestamp": 1}, "message_expired", "message_expired"),
        ("hub:broadcast", {}, {}, "internal_error", "missing_type"),
        ("hub:broadcast", {"type": "hub:x"}, {}, "internal_error", "reserved_type"),
        ("hub:broadcast", {"type": "t"}, {"metadata": "x"}, "internal_error", "invalid_metadata"),
        ("hub:broadcast", {"type": "t"}, {"ttl": 1, "timestamp": 1}, "message_expired", "message_expired"),
    ]
    for kind, payload, envelope, code, reason in rows:
        with subtests.test(kind=kind, payload=payload):
            talk = Talk()
            sender, target = talk.connect(A), talk.connect(B)

            error = talk.refused(sender, kind, payload, **envelope)

            assert (error["code"], error["details"]["reason"]) == (code, reason)
            assert talk.heard(target) == []


@pytest.mark.parametrize(("depth", "is_taken"), [(64, True), (65, False)])
@pytest.mark.parametrize("where", ["data", "metadata"])
def test_data_and_metadata_may_be_nested_so_deep(where: str, depth: int, is_taken: bool) -> None:
    talk = Talk()
    sender, target = talk.connect(A), talk.connect(B)
    nested: object = 0
    for _ in range(depth - 1):
        nested = [nested]

    deep = {"x": nested}
    if where == "data":
        talk.say(sender, "hub:send", message(data=deep))
    else:
        talk.say(sender, "hub:send", message(), metadata=deep)

    (reply,) = talk.heard(sender)
    assert len(talk.heard(target)) == is_taken
    if not is_taken:
        assert (reply["payload"]["code"], reply["payload"]["details"]["reason"]) == ("internal_error", "too_deep")


# --- broadcasts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "metadata", "reached"),
    [
        ({}, None, "bc"),
        ({"excludeSelf": False}, None, "abc"),
        ({"targetCapability": "video"}, None, "c"),
        ({}, {"targetCapability": "video"}, "c"),
        ({}, {"targetCapability": 7}, "bc"),
        ({"targetCapability": "nothing"}, None, ""),
    ],
)
def test_a_broadcast_reaches_all_or_those_with_a_capability(payload: Frame, metadata: object, reached: str) -> None:
    talk = Talk()
    sessions = {
        name: talk.connect(f"@(browser/{name})", capabilities=("chat", "video") if name == "c" else ("chat",)) for name in "abc"
    }
    talk.meet()

    talk.say(sessions["a"], "hub:broadcast", {"type": "t", "data": [1], **payload}, id="b", metadata=metadata)

    heard = {name: talk.heard(session) for name, session in sessions.items()}
    reply = heard["a"].pop()
    assert pick(reply, "type", "correlationId", "payload") == {
        "type": "hub:delivery_ack",
        "correlationId": "b",
        "payload": {
            "messageId": "b",
            "delivered": True,
            "timestamp": talk.ms,
            "deliveredCount": len(reached),
            "failedCount": 0,
        },
    }
    for name, frames in heard.items():
        expected = {
            "type": "t",
            "from": A,
            "to": f"@(browser/{name})",
            "payload": [1],
            "timestamp": talk.ms,
            "metadata": {"forwarded": True, "via": HUB, "originalMessageId": "b"},
        }
        assert frames == ([expected] if name in reached else [])


def test_clients_of_the_original_are_told_the_counts() -> None:
    talk = Talk(HubRules(rate=None, max_outbox_messages=1), original=True)
    sender, slow, quick = talk.connect(A), talk.connect(B), talk.connect(C)
    talk.say(sender, "hub:broadcast", {"type": "t"})
    talk.forget(sender, quick)

    reply = talk.ask(sender, "hub:broadcast", {"type": "t"}, id="b")

    assert (reply["type"], reply["payload"]) == ("hub:broadcast_ack", {"messageId": "b", "deliveredCount": 1, "failedCount": 1})
    assert (slow.closing, quick.closing) == (close_codes.SLOW_READER, None)


@pytest.mark.parametrize(("most", "is_sent"), [(2, True), (1, False)])
def test_a_broadcast_reaches_so_many_or_nobody(most: int, is_sent: bool) -> None:
    talk = Talk(HubRules(rate=None, max_broadcast=most))
    sender, *others = (talk.connect(address) for address in (A, B, C))

    reply = talk.ask(sender, "hub:broadcast", {"type": "t"})

    assert [len(talk.heard(other)) for other in others] == [is_sent, is_sent]
    if not is_sent:
        error = reply["payload"]
        assert (error["code"], error["details"]["reason"]) == ("BROADCAST_LIMIT_EXCEEDED", "broadcast_limit")
        assert error["details"]["limit"] == 1


def test_who_may_publish_to_some_topics_only_may_not_broadcast() -> None:
    talk = Talk()
    sender, other = talk.connect(A, identity=Identity(publish=("x",))), talk.connect(B)

    error = talk.refused(sender, "hub:broadcast", {"type": "t"})

    assert (error["code"], error["details"]["reason"]) == ("unauthorized", "not_permitted")
    assert talk.heard(other) == []


def test_who_may_publish_nothing_may_not_send() -> None:
    talk = Talk()
    sender, other = talk.connect(A, identity=Identity(publish=())), talk.connect(B)

    error = talk.refused(sender, "hub:send", message())

    assert (error["code"], error["details"]["reason"]) == ("unauthorized", "not_permitted")
    assert talk.heard(other) == []
