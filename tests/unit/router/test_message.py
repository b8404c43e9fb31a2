"""Specification 001, "Core Data Structures": what a message's body says."""

import msgspec
import pytest

from penstock.errors import InvalidArgument
from penstock.router.core.message import DEFAULT_GROUP, DEFAULT_POOL, Pointer, SourceMessage, parse

FULL = {
    "id": "01K9",
    "poolCode": "POOL-HIGH",
    "authToken": "token",
    "mediationType": "HTTP",
    "mediationTarget": "https://target.example/hook",
    "messageGroupId": "order-123",
    "highPriority": True,
    "signingSecret": "secret",
    "payload": {"a": [1, 2]},
}


def body(**changes: object) -> bytes:
    fields = {"id": "1", "poolCode": "P", "mediationTarget": "https://t/", **changes}
    return msgspec.json.encode({key: value for key, value in fields.items() if value is not ...})


def test_message_pointer_every_field_is_read() -> None:
    assert parse(msgspec.json.encode(FULL)) == Pointer(
        message_id="01K9",
        pool="POOL-HIGH",
        target="https://target.example/hook",
        group="order-123",
        is_urgent=True,
        mediation_type="HTTP",
        auth_token="token",
        signing_secret="secret",
        payload=msgspec.Raw(b'{"a":[1,2]}'),
    )


@pytest.mark.parametrize("group", [..., None, "", " ", "\t\n "])
def test_message_pointer_message_group_id_null_or_blank_is_the_default_group(group: object) -> None:
    assert parse(body(messageGroupId=group)).group == DEFAULT_GROUP == "__DEFAULT__"


@pytest.mark.parametrize("pool", [..., None, ""])
def test_message_pointer_pool_code_missing_is_the_default_pool(pool: object) -> None:
    assert parse(body(poolCode=pool)).pool == DEFAULT_POOL == "DEFAULT-POOL"


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"mediationType": ...}, "mediation_type", "HTTP"),
        ({"mediationType": None}, "mediation_type", "HTTP"),
        ({"mediationType": "KAFKA"}, "mediation_type", "KAFKA"),  # dead when it is delivered, with that reason
        ({"highPriority": None}, "is_urgent", False),
        ({"authToken": None}, "auth_token", ""),
        ({"signingSecret": None}, "signing_secret", ""),
        ({"id": ..., "messageId": "2"}, "message_id", "2"),
        ({"id": "1", "messageId": "2"}, "message_id", "1"),
        ({"mediationTarget": ..., "callbackUrl": "https://c/"}, "target", "https://c/"),
        ({"mediationTarget": "https://t/", "callbackUrl": "https://c/"}, "target", "https://t/"),
        ({"payload": "text"}, "payload", msgspec.Raw(b'"text"')),
        ({"dispatchMode": "IMMEDIATE", "batchId": 7, "sqsMessageId": "x"}, "message_id", "1"),  # unknown names are passed over
    ],
)
def test_message_pointer_fields_that_may_be_left_out_and_their_other_names(
    changes: dict[str, object], field: str, value: object
) -> None:
    assert getattr(parse(body(**changes)), field) == value


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (b"", "not JSON"),
        (b"not json", "not JSON"),
        (b'{"id": "1"', "not JSON"),
        (b'{"id":"1","mediationTarget":"https://t/"} x', "not JSON"),
        (b'{"id":"\xff","mediationTarget":"https://t/"}', "not JSON"),
        (b"[" * 100_000, "not"),
        (b'{"x":' * 100_000, "not JSON"),
        (b"[]", "not a pointer"),
        (b'"text"', "not a pointer"),
        (b"null", "not a pointer"),
        (body(id=1), "not a pointer"),
        (body(mediationTarget=["https://t/"]), "not a pointer"),
        (body(highPriority="yes"), "not a pointer"),
        (body(id=None), "no id"),
        (body(id=...), "no id"),
        (body(id=""), "no id"),
        (body(mediationTarget=...), "the message has no mediationTarget"),
        (body(mediationTarget=""), "the message has no mediationTarget"),
    ],
)
def test_message_parsing_what_is_no_pointer_says_so_and_what_was_wanted(wrong: bytes, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        parse(wrong)

    assert "mediationTarget" in str(caught.value.hint)


def test_message_pointer_secrets_are_never_shown() -> None:
    shown = repr(parse(msgspec.json.encode(FULL)))

    assert shown == "<01K9 of group order-123 for pool POOL-HIGH>"  # a target's query may hold a secret


def test_received_its_body_with_the_secrets_in_it_is_never_shown() -> None:
    assert repr(SourceMessage("b-1", msgspec.json.encode(FULL))) == f"<b-1, {len(msgspec.json.encode(FULL))} bytes>"
