"""The rules of triage: what is masked, what stays, which groups are merged, and what is suggested."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from penstock.pipeline.core.dead_letters import normalised, shape_of, status_of, traits_of
from penstock.pipeline.core.triage import Group, condition_of, report, suggested
from tests.unit.pipeline.causes import letters

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
GROUP = Group(
    stream="queue:jobs",
    subscription="jobs",
    reason="explicit_nack",
    error="",
    target="",
    status=0,
    shape="{}",
    version="",
    count=1,
    first_at=NOON,
    last_at=NOON,
    samples=["m1"],
)


def test_what_differs_from_message_to_message_is_masked(subtests: pytest.Subtests) -> None:
    cases = {
        "the target answered with status 503": "the target answered with status 503",
        "[Errno 111] Connection refused: 10.0.3.4:8080": "[Errno 111] Connection refused: …",
        "connect to db-7.internal:5432 timed out after 30.5 s": "connect to … timed out after …",
        "connect to db.internal:5432 failed": "connect to db.internal:… failed",
        "order 'A-77' has no customer 123": "order … has no customer …",
        'said "no", `x` and <object at 0x7f>': "said … and …",
        "it isn't there, and can't be": "it isn't there, and can't be",
        "Traceback (most recent call last):\n  File x, line 3\nKeyError: 'amount'": "KeyError: …",
        "invalid UUID 0c9d7c5a-1f3e-4a35-9d2e-aabbccddeeff": "invalid UUID …",
        "at 2026-01-31T12:00:00.123Z it broke": "at … it broke",
        "on 31 Jan 2026 12:00:00 it broke": "on … it broke",
        "POST https://api.shop.example:8443/v1/orders/123?x=1 failed": "POST https://api.shop.example/…/orders/… failed",
        "GET http://10.1.2.3:80/health failed": "GET http://…/health failed",
        "sha 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08": "sha …",
        "read 12 MiB in 800 ms": "read … in …",
        "": "",
    }
    for error, expected in cases.items():
        with subtests.test(error=error):
            assert normalised(error) == expected
            assert normalised(normalised(error)) == normalised(error), "masking twice changes nothing"


def test_a_status_is_found_where_the_error_names_one() -> None:
    errors = ["the target answered with status 503", "HTTP 429 Too Many Requests", "HTTP/1.1 404 Not Found", "status code: 500"]
    assert [status_of(error) for error in errors] == [503, 429, 404, 500]
    assert [status_of(error) for error in ("order 404 is missing", "status 99", "")] == [0, 0, 0]


def test_a_shape_has_names_and_types_and_no_values() -> None:
    assert shape_of({"b": [{"sku": "x", "n": 1}], "a": None, "c": True}) == "{a: null, b: [{n: number, sku: string}], c: boolean}"
    assert shape_of({f"user-{n}": 1 for n in range(100)}) == "{…}"
    assert shape_of({"a": {"b": {"c": {"d": 1}}}}) == "{a: {b: {c: {…}}}}"


def test_traits_come_from_the_payload_the_headers_and_the_error() -> None:
    task = traits_of(b'{"v": 1, "task": "send_mail", "args": []}', {"release": "7"}, "KeyError: 'x'")
    assert task == ("KeyError: …", "send_mail", 0, "{args: [], task: string, v: number}", "7")
    pointer = b'{"id": "1", "mediationTarget": "https://shop.example/hooks/123?secret=1"}'
    assert traits_of(pointer, {}, "status 404").target == "https://shop.example/hooks/…"
    assert traits_of(pointer, {"router.target": "https://else.example"}, None).target == "https://else.example"
    assert [traits_of(value, {}, None).shape for value in (b"", b"\xff\xfe", b"words", None)] == [
        "empty",
        "bytes",
        "text",
        "removed by retention",
    ]
    assert traits_of(b"[" * 100_000, {}, None).shape == "text"


def test_groups_that_differ_in_nothing_that_matters_are_one() -> None:
    shapes = [replace(GROUP, shape=shape) for shape in ("{a: number, b: string, c: null}", "{a: number, b: string}", "[number]")]
    assert Counter(group.count for group in report(shapes, NOON).groups) == {2: 1, 1: 1}

    versions = [replace(GROUP, version=f"1.{n}") for n in range(3)]
    assert [group.version for group in report(versions[:2], NOON).groups] == ["1.0", "1.1"]
    assert [(group.version, group.count) for group in report(versions, NOON).groups] == [("several", 3)]

    names = [replace(GROUP, error=f"no mailbox of {name}", samples=[f"m{name}"]) for name in "abcdefghij"]
    (group,) = report(names, NOON).groups
    assert (group.error, group.count, group.samples) == ("no mailbox of …", 10, ["ma", "mf", "mj"])
    both = [replace(GROUP, error=f"no mailbox of {first} {last}") for first, last in zip("abcdefghij", "klmnopqrst", strict=True)]
    assert [group.error for group in report(both, NOON).groups] == ["no mailbox of … …"]
    fields = [replace(GROUP, error=f"{name} is missing") for name in ("amount", "customer", "currency")]
    assert len(report(fields, NOON).groups) == 3, "a few words are different errors"


def test_a_group_keeps_its_id_while_its_cause_is_the_same() -> None:
    (first,) = report([GROUP], NOON).groups
    (later,) = report([replace(GROUP, count=9, samples=["m2"])], NOON.replace(hour=13)).groups
    assert first.id == later.id
    assert first.id != report([replace(GROUP, status=404)], NOON).groups[0].id


def test_a_group_says_how_to_select_its_letters() -> None:
    group = replace(GROUP, error='100% of a_b is "no" …', status=404, target="https://shop.example", version="1.4")
    assert condition_of(group) == (
        'reason = "explicit_nack" AND error_pattern LIKE "100\\\\% of a\\\\_b is \\"no\\" %"'
        ' AND status = 404 AND target = "https://shop.example" AND version = "1.4"'
    )
    assert condition_of(replace(group, stream="orders")).startswith('subscription = "jobs" AND reason')


def test_each_kind_of_cause_gets_a_suggestion_of_its_own(subtests: pytest.Subtests) -> None:
    cases = [
        (replace(GROUP, status=503), "when the target answers again"),
        (replace(GROUP, status=404), "correct the target's address"),
        (replace(GROUP, status=429), "--rate below"),
        (replace(GROUP, status=422), "correct the payload or the target"),
        (replace(GROUP, reason="ttl_expired"), "waited longer"),
        (replace(GROUP, error="read timed out"), "raise the timeout"),
        (replace(GROUP, error="KeyError: …"), "correct the code"),
        (replace(GROUP, error="cannot decode JSON"), "correct the publisher"),
        (replace(GROUP, reason="max_retries_exceeded"), "not settled in time"),
        (replace(GROUP, error="sorry"), "penstock trace"),
    ]
    for group, said in cases:
        with subtests.test(group=group):
            assert said in suggested(group)


@pytest.mark.parametrize("seed", range(3))
def test_ten_causes_with_varied_texts_come_apart(seed: int) -> None:
    made = letters(3_000, seed)
    # How many of each cause come into a group is read off its count: each letter counts as a power of the base.
    base = len(made) + 1
    rows = []
    for one in made:
        error, target, status, shape, version = traits_of(one.payload, one.attributes, one.error)
        where = {"stream": f"queue:{one.queue}", "subscription": one.queue, "reason": one.reason, "count": base**one.cause}
        rows.append(replace(GROUP, error=error, target=target, status=status, shape=shape, version=version, **where))

    found = [[group.count // base**cause % base for cause in range(10)] for group in report(rows, NOON).groups]

    assert sum(map(sum, found)) == len(made)
    assert sum(map(max, found)) / len(made) >= 0.99, "purity"
    assert all(1 <= sum(count > 0 for count in column) <= 2 for column in zip(*found, strict=True)), "groups of each cause"
