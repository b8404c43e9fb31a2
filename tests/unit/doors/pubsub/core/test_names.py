"""Names of resources, at their limits."""

import pytest

from penstock.doors.pubsub.core import names
from penstock.doors.pubsub.core.names import SCHEMAS, SUBSCRIPTIONS, TOPICS, Name
from penstock.errors import InvalidArgument

GOOD_IDS = ["abc", "a" + "b" * 254, "A-_.~+%9", "Goog", "gooo", "a%2Fb", "xgoog"]
BAD_IDS = ["", "ab", "a" * 256, "1abc", "-abc", "googabc", "goog", "a bc", "abc/", "abcé", "abc\n", "abc@1", "äbc", "ab\x00c"]
GOOD_PROJECTS = ["p", "my-project", "1234", "example.com:api", "A_b", "p" * 255]
BAD_PROJECTS = ["", "-p", "p/q", "p q", "p" * 256, "pé", "p\n", ".p"]


@pytest.mark.parametrize("id_", GOOD_IDS)
@pytest.mark.parametrize("kind", [TOPICS, SUBSCRIPTIONS])
def test_a_good_id_is_taken_apart_and_put_together_again(id_: str, kind: str) -> None:
    name = names.parse(f"projects/p/{kind}/{id_}", kind, "name")

    assert name == Name("p", kind, id_)
    assert str(name) == f"projects/p/{kind}/{id_}"
    assert names.child("p", kind, id_, "id") == name


@pytest.mark.parametrize("id_", BAD_IDS)
def test_a_bad_id_is_refused_with_the_field_and_the_value(id_: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^subscription is .*, wanted"):
        names.parse(f"projects/p/subscriptions/{id_}", SUBSCRIPTIONS, "subscription")
    with pytest.raises(InvalidArgument, match=r"^schema_id is .*, wanted"):
        names.child("p", SCHEMAS, id_, "schema_id")


@pytest.mark.parametrize("project", GOOD_PROJECTS)
def test_a_good_project(project: str) -> None:
    assert names.parse(f"projects/{project}/topics/abc", TOPICS, "topic").project == project
    assert names.parse_project(f"projects/{project}", "project") == project


@pytest.mark.parametrize("project", BAD_PROJECTS)
def test_a_bad_project(project: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^topic is "):
        names.parse(f"projects/{project}/topics/abc", TOPICS, "topic")
    with pytest.raises(InvalidArgument, match=r"^project is "):
        names.parse_project(f"projects/{project}", "project")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "/",
        "topics/abc",
        "projects/p",
        "projects/p/topics",
        "projects/p/subscriptions/abc",
        "project/p/topics/abc",
        "/projects/p/topics/abc",
        "projects/p/topics/abc/",
        "projects/p/topics/abc/d",
        "projects//topics/abc",
        "_deleted-topic_",
    ],
)
def test_what_is_not_the_name_of_a_topic(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^topic is .*projects/PROJECT/topics/ID"):
        names.parse(text, TOPICS, "topic")


def test_the_calls_about_permissions_take_any_kind() -> None:
    assert names.parse_any("projects/p/snapshots/abc", "resource").kind == names.SNAPSHOTS
    for text in ("projects/p/queues/abc", "projects/p/topics/a", "projects/p", "a/b/topics/d"):
        with pytest.raises(InvalidArgument, match="resource is"):
            names.parse_any(text, "resource")


def test_a_schema_may_name_a_revision() -> None:
    plain = Name("p", SCHEMAS, "abc")

    assert names.parse_schema("projects/p/schemas/abc", "name") == (plain, None)
    assert names.parse_schema("projects/p/schemas/abc@01234def", "name") == (plain, "01234def")


@pytest.mark.parametrize("revision", ["", "1234567", "123456789", "0123456G", "0123456A", "01234def@", "\uff101234567"])
def test_a_revision_is_8_hexadecimal_digits(revision: str) -> None:
    with pytest.raises(InvalidArgument, match="revision id"):
        names.parse_schema(f"projects/p/schemas/abc@{revision}", "name")


@pytest.mark.parametrize("kind", [TOPICS, SUBSCRIPTIONS, names.SNAPSHOTS, SCHEMAS])
def test_an_assigned_name_keeps_the_rules(kind: str) -> None:
    name = names.assigned("p", kind, b"\x00\xff" * 8)

    assert names.parse(str(name), kind, "name") == name


def test_a_refusal_shows_no_more_than_a_line() -> None:
    with pytest.raises(InvalidArgument) as caught:
        names.parse("x" * 1_000_000, TOPICS, "topic")
    assert len(str(caught.value)) < 400
