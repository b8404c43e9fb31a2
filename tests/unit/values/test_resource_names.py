"""Names of resources, at their limits."""

import pytest

from penstock.errors import InvalidArgument
from penstock.values import resource_names as names
from penstock.values.resource_names import SCHEMAS, SUBSCRIPTIONS, TOPICS, Name

GOOD_IDS = ["abc", "a" + "b" * 254, "A-_.~+%9", "Goog", "gooo", "a%2Fb", "xgoog"]
BAD_IDS = ["", "ab", "a" * 256, "1abc", "-abc", "googabc", "goog", "a bc", "abc/", "abcé", "abc\n", "abc@1", "äbc", "ab\x00c"]
GOOD_PROJECTS = ["p", "my-project", "1234", "example.com:api", "A_b", "p" * 255]
BAD_PROJECTS = ["", "-p", "p/q", "p q", "p" * 256, "pé", "p\n", ".p"]


def test_a_good_id_is_taken_apart_and_put_together_again(subtests: pytest.Subtests) -> None:
    kinds: list[str] = [TOPICS, SUBSCRIPTIONS]
    for kind in kinds:
        for id_ in GOOD_IDS:
            with subtests.test(kind=kind, id_=id_):
                name = names.parse(f"projects/p/{kind}/{id_}", kind, "name")

                assert name == Name("p", kind, id_)
                assert str(name) == f"projects/p/{kind}/{id_}"
                assert names.child("p", kind, id_, "id") == name


def test_a_bad_id_is_refused_with_the_field_and_the_value(subtests: pytest.Subtests) -> None:
    for id_ in BAD_IDS:
        with subtests.test(id_=id_):
            with pytest.raises(InvalidArgument, match=r"^subscription is .*, expected"):
                names.parse(f"projects/p/subscriptions/{id_}", SUBSCRIPTIONS, "subscription")
            with pytest.raises(InvalidArgument, match=r"^schema_id is .*, expected"):
                names.child("p", SCHEMAS, id_, "schema_id")


def test_a_good_project(subtests: pytest.Subtests) -> None:
    for project in GOOD_PROJECTS:
        with subtests.test(project=project):
            assert names.parse(f"projects/{project}/topics/abc", TOPICS, "topic").project == project
            assert names.parse_project(f"projects/{project}", "project") == project


def test_a_bad_project(subtests: pytest.Subtests) -> None:
    for project in BAD_PROJECTS:
        with subtests.test(project=project):
            with pytest.raises(InvalidArgument, match=r"^topic is "):
                names.parse(f"projects/{project}/topics/abc", TOPICS, "topic")
            with pytest.raises(InvalidArgument, match=r"^project is "):
                names.parse_project(f"projects/{project}", "project")


def test_what_is_not_the_name_of_a_topic(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
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
    ]
    for text in rows:
        with subtests.test(text=text), pytest.raises(InvalidArgument, match=r"^topic is .*projects/PROJECT/topics/ID"):
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


def test_a_revision_is_8_hexadecimal_digits(subtests: pytest.Subtests) -> None:
    for revision in ("", "1234567", "123456789", "0123456G", "0123456A", "01234def@", "\uff101234567"):
        with subtests.test(revision=revision), pytest.raises(InvalidArgument, match="revision id"):
            names.parse_schema(f"projects/p/schemas/abc@{revision}", "name")


def test_an_assigned_name_keeps_the_rules(subtests: pytest.Subtests) -> None:
    rows: list[str] = [TOPICS, SUBSCRIPTIONS, names.SNAPSHOTS, SCHEMAS]
    for kind in rows:
        with subtests.test(kind=kind):
            name = names.assigned("p", kind, b"\x00\xff" * 8)

            assert names.parse(str(name), kind, "name") == name


def test_a_refusal_shows_no_more_than_a_line() -> None:
    with pytest.raises(InvalidArgument) as caught:
        names.parse("x" * 1_000_000, TOPICS, "topic")
    assert len(str(caught.value)) < 400
