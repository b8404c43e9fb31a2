"""The topic table: which subscribers a topic reaches, in which order, that nothing is left of those who left; sorted names."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from types import ModuleType

import pytest

from penstock.hub.core.topic_table import BLOCK, Names, TopicTable


def table(*subscriptions: tuple[str, str]) -> TopicTable[str]:
    """A table of (pattern, subscriber)."""
    made: TopicTable[str] = TopicTable()
    for pattern, subscriber in subscriptions:
        assert made.add(pattern, subscriber)
    return made


def objects_in(root: object) -> int:
    """How many objects hang on one that may grow: all of it, whatever the table is made of."""
    seen: dict[int, object] = {}
    found: list[object] = [root]
    while found:
        each = found.pop()
        if id(each) not in seen and not isinstance(each, type | ModuleType):
            seen[id(each)] = each
            found += gc.get_referents(each)
    return len(seen)


def test_a_new_table_reaches_nobody() -> None:
    empty = table()

    assert len(empty) == 0
    assert list(empty.match("a")) == list(empty.subscribers("a")) == list(empty.patterns_of("ann")) == []
    assert empty.count("a") == empty.total() == 0
    assert empty.names() == []
    assert empty.drop("ann") == []
    assert not empty.remove("a", "ann")


def test_subscribing_twice_is_subscribing_once() -> None:
    subject = table(("a", "ann"), ("b/#", "ann"))

    assert not subject.add("a", "ann")
    assert not subject.add("b/#", "ann")
    assert list(subject.match("a")) == list(subject.match("b")) == ["ann"]
    assert len(subject) == 2


def test_only_a_subscription_that_exists_is_ended_and_only_once() -> None:
    subject = table(("a/+", "ann"), ("a/+", "bob"), ("b", "bob"))

    assert not subject.remove("a/+", "eve")
    assert not subject.remove("b", "ann")
    assert not subject.remove("a/x", "ann"), "a pattern is ended by its own name"
    assert subject.remove("a/+", "ann")
    assert not subject.remove("a/+", "ann")
    assert list(subject.match("a/x")) == ["bob"]
    assert list(subject.match("b")) == ["bob"]


def test_a_message_reaches_those_whose_pattern_covers_its_topic(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, list[str], list[str]]] = [
        ("a", ["a"], ["A", "b", "a/", "/a", "a/b"]),
        ("a/b", ["a/b"], ["a", "a/b/", "a//b", "a/b/c", "a/c"]),
        ("+", ["a", "b"], ["a/b", "/", "/a", "a/"]),
        ("a/+", ["a/b", "a/"], ["a", "b/b", "a/b/c", "a//"]),
        ("+/b", ["a/b", "/b"], ["b", "a/b/c", "a/c"]),
        ("a/+/c", ["a/b/c", "a//c"], ["a/c", "a/b/c/d", "a/b/d", "a/b"]),
        ("+/+", ["a/b", "/", "/a", "a/"], ["a", "a/b/c", "//"]),
        ("#", ["a", "/", "a/b", "/a//b/"], []),
        ("a/#", ["a", "a/", "a/b", "a/b/c", "a//"], ["b", "ab", "/a", "b/a"]),
        ("+/#", ["a", "/", "a/b/c"], []),
        ("a/+/#", ["a/b", "a/", "a/b/c/d"], ["a", "b/b"]),
        ("+/b/#", ["a/b", "/b", "a/b/c"], ["b", "a", "a/c/b"]),
        ("/#", ["/", "/a", "//"], ["a", "a/"]),
        ("a//b", ["a//b"], ["a/b", "a/x/b"]),
        ("a//+", ["a//b", "a//"], ["a/x/b", "a/b", "a/"]),
        ("/+/", ["/a/", "//"], ["/a", "a/", "/"]),
    ]
    for pattern, reached, missed in rows:
        with subtests.test(pattern=pattern):
            subject = table((pattern, "ann"))

            assert [topic for topic in reached + missed if list(subject.match(topic)) == ["ann"]] == reached
            assert [subject.count(topic) for topic in reached + missed] == [1] * len(reached) + [0] * len(missed)


def test_somebody_is_reached_once_however_many_patterns_match() -> None:
    patterns = ["a/b", "a/+", "+/b", "+/+", "#", "a/#", "+/#", "a/b/#"]
    subject = table(*((pattern, "ann") for pattern in patterns), ("+/b", "bob"), ("#", "bob"))

    assert sorted(subject.match("a/b")) == ["ann", "bob"]
    assert subject.count("a/b") == 2


def test_those_of_the_topic_itself_come_first_in_the_order_of_subscribing() -> None:
    everybody = ["zoe", "ann", "mia", "bob"]
    subject = table(*(("a/b", each) for each in everybody))

    assert list(subject.match("a/b")) == everybody
    assert list(subject.subscribers("a/b")) == everybody

    subject.add("#", "eve")
    subject.add("#", "mia")

    assert list(subject.match("a/b")) == [*everybody, "eve"]


@pytest.mark.parametrize("pattern", ["a/b", "a/+", "#"])
def test_a_set_that_matches_alone_is_not_copied(pattern: str) -> None:
    subject = table((pattern, "ann"), ("other/+/#", "bob"))

    assert subject.match("a/b") is subject.subscribers(pattern)


def test_matching_changes_nothing() -> None:
    subject = table(("a", "ann"), ("+", "bob"), ("#", "eve"))

    assert [sorted(subject.match("a")) for _ in range(2)] == [["ann", "bob", "eve"]] * 2
    assert [list(subject.subscribers(each)) for each in ("a", "+", "#")] == [["ann"], ["bob"], ["eve"]]


def test_a_name_with_wildcards_is_no_topic_and_costs_no_more_than_one() -> None:
    # Were `+` in a name taken for the pattern's own level, each would double the ways to go: this would not end.
    deep = "+/" * 127 + "+"
    subject = table((deep, "ann"), ("#", "bob"))

    assert sorted(subject.match(deep)) == ["ann", "bob"]


def test_a_topic_may_have_as_many_levels_as_its_length_allows() -> None:
    subject = table(("/" * 256, "ann"), ("+" + "/+" * 127, "bob"), ("/" * 254 + "#", "eve"))

    assert sorted(subject.match("/" * 256)) == ["ann", "eve"]
    assert list(subject.match("/" * 127)) == ["bob"]


def test_subscribers_are_told_apart_by_themselves_and_need_no_order() -> None:
    class Session:
        pass

    one, other = Session(), Session()
    subject: TopicTable[Session] = TopicTable()
    for each in (one, other):
        subject.add("a", each)
        subject.add("+", each)

    assert list(subject.match("a")) == [one, other]


def test_dropping_somebody_ends_all_they_had_and_nothing_of_others() -> None:
    patterns = ["z", "a/+", "a", "#", "b/#"]
    subject = table(*((pattern, "ann") for pattern in patterns), ("a/+", "bob"), ("z", "bob"))

    assert list(subject.patterns_of("ann")) == patterns
    assert subject.drop("ann") == patterns
    assert list(subject.patterns_of("ann")) == subject.drop("ann") == []
    assert subject.names() == [("a/+", 1), ("z", 1)]
    assert list(subject.match("a/x")) == list(subject.match("z")) == ["bob"]
    assert list(subject.patterns_of("bob")) == ["a/+", "z"]


def test_patterns_of_somebody_are_in_order_and_those_that_ended_are_gone() -> None:
    subject = table(("c", "ann"), ("a/+", "ann"), ("b", "ann"))
    subject.remove("a/+", "ann")

    assert list(subject.patterns_of("ann")) == ["c", "b"]


def test_a_pattern_that_ends_leaves_those_that_share_its_beginning(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("a/+", "a/+/c"),
        ("a/+/c", "a/+"),
        ("a/+", "a/+/#"),
        ("a/+/#", "a/+"),
        ("a/+/c", "a/+/d"),
        ("#", "+"),
        ("+", "#"),
    ]
    for ended, left in rows:
        with subtests.test(ended=ended, left=left):
            subject = table((ended, "ann"), (left, "bob"))
            alone = table((left, "bob"))

            subject.remove(ended, "ann")

            for topic in ("a", "a/b", "a/b/c", "a/b/d", "a/b/c/d"):
                assert list(subject.match(topic)) == list(alone.match(topic))
            assert subject.add(ended, "eve")
            assert "eve" in [*subject.match("a"), *subject.match("a/b"), *subject.match("a/b/c")]


def some_patterns(count: int) -> Iterable[str]:
    shapes = ("a/{}", "a/{}/+", "{}/#", "+/{}/b", "+/+/{}/c/#", "x/+/{}//+")
    return (shapes[number % len(shapes)].format(number) for number in range(count))


def test_nothing_is_left_of_patterns_that_came_and_went() -> None:
    subject = table()
    fresh = objects_in(subject)

    for number, pattern in enumerate(some_patterns(20_000)):
        subject.add(pattern, f"s{number}")
        assert subject.remove(pattern, f"s{number}")

    assert objects_in(subject) == fresh
    assert len(subject) == 0


def test_nothing_is_left_of_somebody_who_dropped_many_patterns() -> None:
    subject = table(("a/+/c", "bob"), ("a", "bob"))
    before = objects_in(subject)

    for pattern in some_patterns(5_000):
        subject.add(pattern, "ann")
    assert objects_in(subject) > before + 5_000, "the count sees the trie"

    assert len(subject.drop("ann")) == 5_000
    assert objects_in(subject) == before
    assert subject.names() == [("a", 1), ("a/+/c", 1)]


def test_names_are_listed_by_name_with_those_who_subscribe_by_that_name() -> None:
    subject = table(("b", "ann"), ("a/+", "ann"), ("a/+", "bob"), ("a", "ann"), ("a/b", "eve"), ("#", "eve"), ("ab", "eve"))
    everything = [("#", 1), ("a", 1), ("a/+", 2), ("a/b", 1), ("ab", 1), ("b", 1)]

    assert subject.names() == everything
    assert len(subject) == subject.total() == len(everything)
    assert subject.names("a") == everything[1:5]
    assert subject.names("a/") == everything[2:4]
    assert subject.names("c") == subject.names("a/b/") == subject.names("é") == subject.names("\ud800") == []
    assert [subject.total(prefix) for prefix in ("a", "a/", "b", "c", "é")] == [4, 2, 1, 0, 0]


def test_names_come_in_pages() -> None:
    subject = table(*((f"t/{number}", "ann") for number in range(1_025)), ("s", "ann"), ("u", "ann"))
    everything = subject.names("t/")

    pages = [subject.names("t/", offset, 500) for offset in (0, 500, 1_000, 1_500)]

    assert everything == sorted((f"t/{number}", 1) for number in range(1_025))
    assert pages == [everything[:500], everything[500:1_000], everything[1_000:], []]
    assert subject.names("t/", 3, 0) == []


def test_no_names_are_an_empty_page() -> None:
    assert Names().page("", 0, 10) == []
    assert Names().count("") == 0


@pytest.mark.parametrize("count", [1, 2 * BLOCK - 1, 2 * BLOCK, 5 * BLOCK])
@pytest.mark.parametrize("step", [1, -1])
def test_a_page_is_what_a_sorted_list_would_give(count: int, step: int) -> None:
    names, everything = Names(), [f"{number:06}" for number in range(count)]
    for name in everything[::step]:
        names.add(name)

    for offset in (0, 1, BLOCK - 1, BLOCK, count - 1, count, count + 1):
        assert names.page("", offset, BLOCK) == everything[offset : offset + BLOCK]
    assert names.page("", 0, count) == everything
    assert names.count("") == count


def test_names_stay_sorted_while_blocks_are_cut_and_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.hub.core.topic_table.BLOCK", 4)
    names = Names()
    kept: set[str] = set()
    for number in range(500):
        name = str(number * 7919 % 1000)
        names.add(name)
        kept.add(name)
        if number % 3 == 2:
            gone = sorted(kept)[number * 31 % len(kept)]
            names.remove(gone)
            kept.remove(gone)
        ones = sorted(each for each in kept if each.startswith("1"))
        assert names.page("", 0, 1000) == sorted(kept)
        assert names.page("1", 2, 5) == ones[2:7]
        assert names.count("1") == len(ones)
    for name in sorted(kept):
        names.remove(name)

    assert names.page("", 0, 1000) == []
