"""The hub's topic table with 100,000 topics and 10,000 patterns, beside the same work in a table of a hundredth of that.

What costs the depth of a name alone costs the same in both, but for what a larger table loses in the processor's cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from benchmarks.row import Benchmark, Row, Run, alternate, paired_ratio, spread
from penstock.hub.core.topic_table import TopicTable

TOPICS = 100_000
PATTERNS = 10_000
SESSIONS = 5_000
ENOUGH = 50_000
SHAPES = ("region{0}/+/device{2}", "+/site{1}/device{2}", "region{0}/site{1}/device{2}/#", "+/+/device{2}/#")

Table = TopicTable[int]


def topic(number: int, last: str = "device") -> str:
    return f"region{number % 50}/site{number % 41}/{last}{number}"


def pattern(number: int, new: str = "") -> str:
    return SHAPES[number % len(SHAPES)].format(number % 50, number % 41, f"{new}{number}")


def filled(share: int) -> Table:
    """A table with a share of all topics and patterns; one topic in ten is covered by a pattern too."""
    table = Table()
    for number in range(TOPICS // share):
        table.add(topic(number), number % SESSIONS)
    for number in range(PATTERNS // share):
        table.add(pattern(number), number % SESSIONS)
    return table


def changes(table: Table, names: list[str]) -> float:
    """Subscribe to each name as the first, and unsubscribe from it as the last: the dearest case of both."""
    start = time.perf_counter()
    for session, name in enumerate(names):
        table.add(name, session)
    for session, name in enumerate(names):
        table.remove(name, session)
    return 2 * len(names) / (time.perf_counter() - start)


def matches(table: Table, topics: list[str]) -> float:
    start = time.perf_counter()
    for each in topics:
        table.match(each)
    return len(topics) / (time.perf_counter() - start)


def row(name: str, what: str, unit: str, ours: list[float], theirs: list[float], enough: int | None = None) -> Row:
    """A figure beside that of the small table."""
    figure, other = statistics.median(ours), statistics.median(theirs)
    asked, reached = ("", None) if enough is None else (f"> {enough:,} {unit}", figure > enough)
    ratio = paired_ratio(ours, theirs)
    return Row(name, what, figure, unit, other, "a hundredth of the table", ratio, asked, reached, spread(ours))


def hub_core(run: Run) -> Iterator[Row]:
    large, small = filled(1), filled(100)
    count, rounds = run.of(20_000, 5_000), run.of(5, 3)
    state = f"{TOPICS:,} topics, {PATTERNS:,} patterns"
    new_topics = [topic(number, "new") for number in range(count)]
    new_patterns = [pattern(number, "new") for number in range(count)]
    found = alternate(
        rounds,
        {
            "topics": lambda: changes(large, new_topics),
            "few topics": lambda: changes(small, new_topics),
            "patterns": lambda: changes(large, new_patterns),
            "few patterns": lambda: changes(small, new_patterns),
            # A prime step: neighbours in time are no neighbours in memory.
            "match": lambda: matches(large, [topic(number * 7919 % TOPICS) for number in range(count)]),
            "few match": lambda: matches(small, [topic(number * 7919 % (TOPICS // 100)) for number in range(count)]),
        },
    )
    unit = "changes/s"
    yield row("hub-topics", f"subscribe, unsubscribe a topic; {state}", unit, found["topics"], found["few topics"], ENOUGH)
    yield row("hub-patterns", f"the same with a pattern; {state}", unit, found["patterns"], found["few patterns"], ENOUGH)
    yield row("hub-match", f"find whom a message reaches; {state}", "matches/s", found["match"], found["few match"])


BENCHMARKS: dict[str, Benchmark] = {"hub-core": hub_core}
