"""The rates and the layout of `penstock top`."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from penstock.cli.top import keys_of
from penstock.cli.top_view import Sample, Sort, body, frame, ordered, sample, totals
from penstock.values.queue import QueueStats
from penstock.values.subscription import SubscriptionStats
from penstock.wire.results import Overview, SubscriptionState

AT = datetime(2026, 1, 1, tzinfo=UTC)


def stats(backlog: int = 0, delivered: int = 0, acked: int = 0, age: float = 0) -> SubscriptionStats:
    return SubscriptionStats(backlog, 0, 0, 0, backlog, 0, age, delivered, acked, delivered - acked, 0, 7, 0, 0)


def queue(name: str, depth: int, consumed: int, *, paused: bool = False) -> QueueStats:
    return QueueStats(name, depth, 1, 0, consumed, consumed, 0, 0, 0.0, 90.0, 3, 5, 0, 0, 0, 2, 0, 0, 0, paused)


def overview(
    seconds: float, topics: dict[str, int], queues: list[QueueStats] | None = None, **found: SubscriptionStats
) -> Overview:
    states = [SubscriptionState(name, "orders", name == "gone", one, name == "audit") for name, one in found.items()]
    return Overview(AT + timedelta(seconds=seconds), topics, states, queues or [])


def test_a_rate_is_what_came_in_the_time_between() -> None:
    before = overview(0, {"orders": 100}, [queue("tasks", 3, 10)], billing=stats(4, 50, 50))
    after = overview(2, {"orders": 300}, [queue("tasks", 4, 30)], billing=stats(2, 150, 140, 1.5))

    seen = sample(before, after)

    [topic] = seen.sources
    assert (topic.name, topic.published, topic.total) == ("orders", 100.0, 300)
    [billing] = seen.of("subscription")
    assert (billing.backlog, billing.oldest, billing.delivered, billing.acked, billing.nacked, billing.dead) == (
        2,
        1.5,
        50,
        45,
        5,
        7,
    )
    [tasks] = seen.of("queue")
    assert (tasks.backlog, tasks.in_flight, tasks.delivered, tasks.dead) == (12, 5, 10.0, 2)


@pytest.mark.parametrize(
    "before",
    [
        None,
        overview(0, {}),  # it is new
        overview(1, {"orders": 1}, billing=stats(0, 1, 1)),  # no time has passed
        overview(0, {"orders": 999}, billing=stats(0, 999, 999)),  # the counts fell: another server, or made again
        overview(5, {"orders": 1}, billing=stats(0, 1, 1)),  # the server's clock was set back
    ],
)
def test_a_rate_that_cannot_be_known_is_not_made_up(before: Overview | None) -> None:
    seen = sample(before, overview(1, {"orders": 100}, billing=stats(0, 50, 50)))

    assert [one.published for one in seen.sources] == [None]
    assert [(one.delivered, one.acked) for one in seen.flows] == [(None, None)]
    assert "published -/s" in totals(seen, 200)


def example() -> Sample:
    queues = [queue("tasks", 1_000, 0, paused=True)]
    flows = {"billing": stats(10, 500, 500, 3), "audit": stats(2_000, 0, 0, 100), "gone": stats(0, 0, 0)}
    before = overview(0, {"orders": 0, "dead": 0}, queues, **dict.fromkeys(flows, stats()))
    return sample(before, overview(1, {"orders": 12_034, "dead": 0}, queues, **flows))


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        (Sort.BACKLOG, ["audit", "tasks", "billing", "gone"]),
        (Sort.RATE, ["billing", "audit", "gone", "tasks"]),
        (Sort.AGE, ["audit", "tasks", "billing", "gone"]),
        (Sort.NAME, ["audit", "billing", "gone", "tasks"]),
    ],
)
def test_rows_are_in_the_order_that_is_wanted(sort: Sort, names: list[str]) -> None:
    found = ordered(example(), sort)
    assert [one.name for one in found.flows] == names
    assert [one.name for one in found.sources] == (["dead", "orders"] if sort is Sort.NAME else ["orders", "dead"])


def test_a_wide_screen_shows_everything() -> None:
    assert body(ordered(example(), Sort.BACKLOG), 120) == [
        "SUBSCRIPTION     BACKLOG  DELAYED  IN FLIGHT  OLDEST  DELIVERED/s  ACKED/s  NACKED/s  DEAD",
        "audit (paused)     2,000        0          0  1m 40s            0        0         0     7",
        "billing               10        0          0   3.0 s          500      500         0     7",
        "gone (detached)        0        0          0       -            0        0         0     7",
        "",
        "QUEUE           BACKLOG  DELAYED  IN FLIGHT  OLDEST  DELIVERED/s  ACKED/s  NACKED/s  DEAD",
        "tasks (paused)    1,008        3          5  1m 30s            0        0         0     2",
        "",
        "TOPIC   PUBLISHED/s  PUBLISHED",
        "orders       12,034     12,034",
        "dead              0          0",
    ]


def test_a_narrow_screen_gives_up_columns_and_is_never_exceeded() -> None:
    for width in (200, 80, 60, 40, 20, 5, 1):
        lines = body(example(), width)
        assert max(map(len, lines)) <= width
        assert len(lines) == 11


def test_names_are_cut_and_cannot_reach_the_terminal() -> None:
    before, after = (overview(at, {"x" * 300: 0, "\x1b[2Jevil": 0}) for at in (0, 1))
    lines = body(sample(before, after), 60)
    assert max(map(len, lines)) == 60
    assert "\x1b" not in "".join(lines)


def test_nothing_there_says_how_to_begin() -> None:
    assert "penstock topic create" in body(sample(None, overview(0, {})), 80)[0]


def test_the_sums_are_whole_or_left_out() -> None:
    whole = totals(example(), 200)
    assert whole == "backlog 3,018  in flight 5  published 12,034/s  delivered 500/s  acked 500/s"
    for width in range(10, 100, 7):
        line = totals(example(), width)
        assert len(line) <= max(width, len("backlog 3,018"))
        assert whole.startswith(line)


LINES = [f"line {number}" for number in range(20)]


def test_a_frame_is_exactly_as_high_as_the_screen(subtests: pytest.Subtests) -> None:
    for height, top in itertools.product(range(1, 40), [-5, 0, 3, 1_000]):
        with subtests.test(height=height, top=top):
            screen, first = frame(["title", "sums"], LINES, "q quit", (30, height), top)
            assert len(screen) == height
            shown = [line for line in screen if line.startswith("line")]
            assert shown == LINES[first : first + len(shown)]
            assert shown
            if height >= 4:
                assert screen[0] == "title"
                assert screen[-1].startswith("q quit")


def test_a_frame_says_how_much_is_out_of_sight() -> None:
    screen, first = frame(["title"], LINES, "a long line of keys", (12, 12), 2)
    assert (first, screen[-1]) == (2, "a lon… ↓9 ↑2")
    screen, first = frame(["title"], LINES, "keys", (80, 12), 99)
    assert (first, screen[-1]) == (11, "keys ↑11")


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"bn", ["b", "n"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOA\x1bOB", ["up", "down"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[F", ["page up", "page down", "home", "end"]),
        (b"kj ", ["up", "down", "page down"]),
        (b"\x1b[1;5Cq", ["q"]),  # a key that means nothing here
        (b"\x1b", []),
        (b"\x00\xff\xfe\x01", []),
        (b"", []),
    ],
)
def test_keys(data: bytes, keys: list[str]) -> None:
    assert keys_of(data) == keys
