"""The contract of a journal, as checks for any implementation.

    from penstock.testing.conformance import JOURNAL_CHECKS, JournalCheck

    @pytest.mark.parametrize("check", JOURNAL_CHECKS, ids=lambda check: check.__name__)
    def test_my_journal_keeps_the_contract(check: JournalCheck, tmp_path: Path) -> None:
        check(lambda: MyJournal(tmp_path / "data"))

Each check gets a function that opens the journal of one place, at first empty; a check of what survives calls it again after
closing. `check_journal` runs them all, for where there is no pytest. A broken promise is an AssertionError that names it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from penstock.journal.core import events
from penstock.journal.core.checkpoint import QUEUE, TOPIC, DeadLetterEntry, Position, QueueImage, State, StreamImage, Trace
from penstock.journal.core.chunk import Chunk, Summary, size_of
from penstock.journal.core.events import Event
from penstock.journal.core.producers import Producers
from penstock.journal.journal import Append, Commit, Journal
from penstock.values.message import StoredMessage, summarize
from penstock.values.policy import Policy

OpenJournal = Callable[[], Journal]
JournalCheck = Callable[[OpenJournal], None]

T = TypeVar("T")

START = 1_767_225_600_000_000
SIZES = (1, 1, 100, 64, 1, 2_000, 63, 7)
"""The sizes of the commits of a filled stream: one message, a few, and many."""
GROUP = 65
"""Messages in a commit while other threads read."""


def check_journal(open_at: Callable[[Path], Journal]) -> None:
    """Run all checks on an implementation; `open_at` opens the journal in a directory."""
    for check in JOURNAL_CHECKS:
        with TemporaryDirectory() as folder:
            check(lambda place=Path(folder) / "journal": open_at(place))  # type: ignore[misc]  # a default binds the loop's place


def a_new_journal_is_empty(open_journal: OpenJournal) -> None:
    """Nothing to load, nothing to read, and the first event will have the offset 0."""
    with _opened(open_journal) as journal:
        _same(_loaded(journal), (State(), []), "a new journal loads an empty state and no events")
        _same(journal.event_range(), (0, 0), "the event log begins at 0")
        _same(list(journal.read(7, 0, 100)), [], "an unknown stream has no messages")
        _same(list(journal.summaries(7, 0, 100)), [], "an unknown stream has no chunks")
        _same(list(journal.read_events(0, 100)), [], "there are no events")
        journal.trim(7, [0])
        journal.trim_events(START)
        _same(journal.event_range(), (0, 0), "removing nothing changes nothing")


def messages_come_back_as_they_were(open_journal: OpenJournal) -> None:
    """Every field of every message, whatever is in it, before and after a restart."""
    batches = [
        [_message(b"")],
        [_message(b"\0\xff" * 50, {"ключ": "значение", "emoji": "\U0001f600", "": "\0\n"}, "schlüssel\u2028")],
        [
            _message(
                b"rare", priority=9, expires_at=START + 5, deliver_at=START + 3, max_attempts=2, content=2, origin_at=START - 9
            )
        ],
        [_message(b"plain", priority=3), _message(b"keyed", key="k"), _message(b"mixed", priority=0, expires_at=1)],
        [_message(b"%d" % number, {"n": str(number)}) for number in range(300)],
    ]
    with _opened(open_journal) as journal:
        journal.load()
        wanted: list[StoredMessage] = []
        for batch in batches:
            journal.append(_commit(7, len(wanted), batch))
            wanted += batch
        _same(_messages(journal, 7, 0, len(wanted)), dict(enumerate(wanted)), "messages are read as they were appended")
        _check_summaries(journal, 7, len(wanted))
        is_durable = journal.is_durable
    if is_durable:
        with _opened(open_journal) as journal:
            journal.load()
            _same(_messages(journal, 7, 0, len(wanted)), dict(enumerate(wanted)), "messages are the same after a restart")


def a_range_gives_the_chunks_that_overlap_it(open_journal: OpenJournal) -> None:
    """At, before and behind the border of every commit; nothing of the neighbouring streams."""
    with _opened(open_journal) as journal:
        journal.load()
        total = _fill(journal, [6, 7, 8])
        borders = sorted({at + step for at in (0, *_firsts(), total) for step in (-1, 0, 1)} & set(range(total + 2)))
        for start in borders:
            for stop in (border for border in borders if border >= start):
                chunks = list(journal.read(7, start, stop))
                _same([summary for summary, _ in chunks], list(journal.summaries(7, start, stop)), "read and summaries agree")
                spans = [(summary.first, summary.first + summary.count) for summary, _ in chunks]
                _promise(
                    all(low < stop and high > start for low, high in spans), f"[{start}, {stop}) gives only what overlaps", spans
                )
                _promise(all(one[1] <= two[0] for one, two in pairwise(spans)), "chunks are in order and apart", spans)
                found = {offset for low, high in spans for offset in range(max(low, start), min(high, stop))}
                _promise(found == set(range(start, min(stop, total))), f"[{start}, {stop}) is whole", spans)
        _same(_messages(journal, 7, total, total + 1_000), {}, "nothing lies behind the end")
        for stream in (6, 7, 8):
            texts = {offset: message.data for offset, message in _messages(journal, stream, 0, total).items()}
            _same(texts, {offset: b"%d/%d" % (stream, offset) for offset in range(total)}, "a stream holds its own messages")


def events_have_dense_offsets(open_journal: OpenJournal) -> None:
    """One for each event, in the order of the commits; a range gives the records that overlap it, at every border."""
    with _opened(open_journal) as journal:
        journal.load()
        records = _record(journal)
        total = records[-1][0] + records[-1][1].count
        _same(journal.event_range(), (0, total), "the event log is dense")
        for start in range(total + 2):
            for stop in range(start, total + 2):
                wanted = [(first, event) for first, event in records if first < stop and first + event.count > start]
                _same(list(journal.read_events(start, stop)), wanted, f"events [{start}, {stop})")


def a_commit_is_stored_as_a_whole_or_not_at_all(open_journal: OpenJournal) -> None:
    """Also when a part of it cannot be written; the next one takes the place of one that failed."""
    with _opened(open_journal) as journal:
        journal.load()
        journal.append(_commit(7, 0, [_message(b"before")]))
        before = _snapshot(journal)
        appends = [Append(stream, 1 if stream == 7 else 0, START, summarize([_message(b"no")])) for stream in (6, 7, 8)]
        unwritable = events.TopicCreated(9, START, "\ud800")
        failed = False
        try:
            journal.append(Commit(START, appends, [events.Paused(7, START, True), unwritable]))
        except Exception:  # noqa: BLE001  # whichever error it is, nothing may be left behind
            failed = True
        if failed:
            _same(_snapshot(journal), before, "a commit that failed left nothing behind")
            journal.append(_commit(7, 1, [_message(b"after")]))
            texts = [message.data for message in _messages(journal, 7, 0, 10).values()]
            _same(texts, [b"before", b"after"], "the next commit takes its place")
        else:
            _same([len(_messages(journal, stream, 0, 10)) for stream in (6, 7, 8)], [1, 2, 1], "every part is stored")
            _same([event for _, event in journal.read_events(1, 3)][1:], [unwritable], "every event is stored")
        journal.append(Commit(START, [], []))


def a_durable_journal_remembers(open_journal: OpenJournal) -> None:
    """The last checkpoint and every event since, whatever number of restarts; one in memory begins again."""
    with _opened(open_journal) as journal:
        journal.load()
        records = _record(journal)
        if not journal.is_durable:
            return
    happened = [event for _, event in records]
    with _opened(open_journal) as journal:
        _same(_loaded(journal), (State(), happened), "without a checkpoint every event is loaded")
        journal.checkpoint(_state("first"))
        journal.checkpoint(_state("second"))
        _same([event for _, event in journal.read_events(0, 1_000)], happened, "a checkpoint removes no events")
    with _opened(open_journal) as journal:
        _same(_loaded(journal), (_state("second"), []), "the last checkpoint is loaded, and nothing from before it")
        journal.append(Commit(START, [], happened[:2]))
        journal.append(_commit(7, 0, [_message(b"one")]))
    for _ in range(2):
        with _opened(open_journal) as journal:
            since = [*happened[:2], events.Published(7, START, 0, 1)]
            _same(_loaded(journal), (_state("second"), since), "the events since the checkpoint are loaded, in order")
            total = sum(event.count for event in [*happened, *since])
            _same(journal.event_range(), (0, total), "event offsets continue where they were")
            _same(len(_messages(journal, 7, 0, 10)), 1, "messages are kept")


def trimmed_chunks_are_gone_and_nothing_else(open_journal: OpenJournal) -> None:
    """Named by their first offsets; offsets continue as if nothing had happened."""
    with _opened(open_journal) as journal:
        journal.load()
        total = _fill(journal, [6, 7])
        chunks = list(journal.summaries(7, 0, total))
        gone = [chunks[0], *chunks[2:-1:2]]
        journal.trim(7, [summary.first for summary in gone])
        lost = {offset for summary in gone for offset in range(summary.first, summary.first + summary.count)}
        kept = set(range(total)) - lost
        _same(set(_messages(journal, 7, 0, total)), kept, "the other chunks stay")
        for offset in sorted(
            {0, total - 1, *(at for summary in gone for at in (summary.first, summary.first + summary.count - 1))}
        ):
            _same(set(_messages(journal, 7, offset, offset + 1)), kept & {offset}, "a hole is a hole")
        _same(set(_messages(journal, 6, 0, total)), set(range(total)), "the other stream stays")
        journal.trim(7, [summary.first for summary in gone])
        journal.trim(7, [])
        whole = gone[-1].first + gone[-1].count
        _same(journal.earliest(7), whole, "a stream is whole from the end of the last chunk that left")
        _same((journal.earliest(6), journal.earliest(8)), (0, None), "others are whole, or have nothing")
        journal.append(_commit(7, total, [_message(b"next")]))
        _same(set(_messages(journal, 7, 0, total + 1)), kept | {total}, "the next message has the next offset")
        journal.trim(7, [summary.first for summary in journal.summaries(7, 0, total + 1)])
        _same(_messages(journal, 7, 0, total + 1), {}, "a stream may be trimmed to nothing")
        journal.append(_commit(7, total + 1, [_message(b"last")]))
        _same(set(_messages(journal, 7, 0, total + 9)), {total + 1}, "and continues")
        _same(journal.earliest(7), total + 1, "from its first message on")
        is_durable = journal.is_durable
    if is_durable:
        with _opened(open_journal) as journal:
            journal.load()
            _same(set(_messages(journal, 7, 0, total + 9)), {total + 1}, "what was trimmed stays away after a restart")


def trimmed_events_are_old_and_not_needed(open_journal: OpenJournal) -> None:
    """Nothing younger than the instant leaves, nor, where a start needs it, what no checkpoint covers; offsets continue."""
    late = events.Paused(7, START + 100, False)
    with _opened(open_journal) as journal:
        journal.load()
        for second in range(10):
            journal.append(Commit(START + second, [], [events.Paused(7, START + second, True)] * 2))
        if journal.is_durable:
            journal.trim_events(START + 99)
            _same(journal.event_range(), (0, 20), "events that a start needs are kept")
        journal.checkpoint(State())
        journal.hold_events(4)
        journal.trim_events(START + 5)
        _promise(journal.event_range()[0] <= 4, "events that are held are kept", journal.event_range())
        journal.hold_events(None)
        journal.trim_events(START + 5)
        first, stop = journal.event_range()
        _promise(0 < first <= 10, "events from before the instant are removed, those of the instant are not", first)
        _same(stop, 20, "the next offset stays")
        _same([at for at, _ in journal.read_events(0, 99)], list(range(first, 20)), "what is kept is dense")
        journal.trim_events(START + 99)
        _same(journal.event_range()[1], 20, "the next offset stays, even when all events leave")
        is_durable = journal.is_durable
        if not is_durable:
            journal.append(Commit(START + 100, [], [late]))
            _same(list(journal.read_events(20, 21)), [(20, late)], "event offsets continue")
    if is_durable:
        with _opened(open_journal) as journal:
            _same(_loaded(journal), (State(), []), "a start finds all it needs in the checkpoint")
            _same(journal.event_range()[1], 20, "the next offset stays after a restart, even when all events have left")
            journal.append(Commit(START + 100, [], [late]))
        with _opened(open_journal) as journal:
            _same(_loaded(journal), (State(), [late]), "a start finds what came after the checkpoint")
            _same(list(journal.read_events(20, 21)), [(20, late)], "event offsets continue after a restart")


def readers_never_see_half_a_commit(open_journal: OpenJournal) -> None:
    """Any thread may read while one appends and trims: what it reads is whole, in order and unharmed."""
    with _opened(open_journal) as journal:
        journal.load()
        is_done = threading.Event()
        troubles: list[BaseException] = []

        def read() -> None:
            try:
                while not is_done.is_set():
                    _check_reading(journal)
            except BaseException as error:  # noqa: BLE001  # reported by the thread that checks
                troubles.append(error)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        readers = [threading.Thread(target=read) for _ in range(2)]
        try:
            for reader in readers:
                reader.start()
            for first in range(0, 300 * GROUP, GROUP):
                journal.append(_commit(7, first, [_message(b"%d" % offset) for offset in range(first, first + GROUP)]))
                if first % (20 * GROUP) == 0:
                    journal.trim(7, [summary.first for summary in journal.summaries(7, 0, first - 5 * GROUP)])
        finally:
            is_done.set()
            for reader in readers:
                reader.join()
            sys.setswitchinterval(interval)
        _promise(not troubles, "reading continues while another thread writes", troubles)


def reading_may_be_left_in_the_middle(open_journal: OpenJournal) -> None:
    """An iterator that is still open, or was dropped, holds nobody up; writing continues beside it."""
    with _opened(open_journal) as journal:
        journal.load()
        total = _fill(journal, [7])
        dropped = [next(iter(journal.read(7, 0, total))) for _ in range(50)]
        open_reads: list[Iterator[object]] = [
            journal.read(7, 0, total),
            journal.summaries(7, 0, total),
            journal.read_events(0, total),
        ]
        firsts = [next(iterator) for iterator in open_reads]
        journal.append(_commit(7, total, [_message(b"beside it")]))
        _promise(len(dropped) == 50 and len(firsts) == 3, "every read began", (len(dropped), len(firsts)))
        _promise(all(len(list(rest)) >= 1 for rest in open_reads), "an open read continues after a write", None)


def size_is_no_obstacle(open_journal: OpenJournal) -> None:
    """Ten mebibytes in a message, a thousand streams in a commit, far offsets and far stream numbers."""
    large = bytes(range(256)) * (40 * 1024)
    with _opened(open_journal) as journal:
        journal.load()
        journal.append(_commit(7, 0, [_message(large), _message(b"small"), _message(large[::-1])]))
        _same(
            [message.data for message in _messages(journal, 7, 0, 3).values()], [large, b"small", large[::-1]], "large is whole"
        )
        journal.append(
            Commit(START, [Append(number, 0, START, summarize([_message(b"%d" % number)])) for number in range(100, 1_100)], [])
        )
        texts = [_messages(journal, number, 0, 1)[0].data for number in range(100, 1_100)]
        _same(texts, [b"%d" % number for number in range(100, 1_100)], "a commit may reach a thousand streams")
        stream, offset = (1 << 23) - 1, (1 << 40) - 2
        journal.append(_commit(stream, offset, [_message(b"far")]))
        _same(set(_messages(journal, stream, offset, offset + 1)), {offset}, "the last stream has its last offset")


def closing_is_safe(open_journal: OpenJournal) -> None:
    """At once, twice, and followed by another opening."""
    open_journal().close()
    journal = open_journal()
    journal.load()
    journal.append(_commit(7, 0, [_message(b"x")]))
    journal.close()
    journal.close()
    with _opened(open_journal) as again:
        again.load()
        _same(len(_messages(again, 7, 0, 1)), 1 if again.is_durable else 0, "what was appended before the closing is there")


JOURNAL_CHECKS: tuple[JournalCheck, ...] = (
    a_new_journal_is_empty,
    messages_come_back_as_they_were,
    a_range_gives_the_chunks_that_overlap_it,
    events_have_dense_offsets,
    a_commit_is_stored_as_a_whole_or_not_at_all,
    a_durable_journal_remembers,
    trimmed_chunks_are_gone_and_nothing_else,
    trimmed_events_are_old_and_not_needed,
    readers_never_see_half_a_commit,
    reading_may_be_left_in_the_middle,
    size_is_no_obstacle,
    closing_is_safe,
)


def _promise(is_kept: bool, promise: str, found: object) -> None:
    if not is_kept:
        raise AssertionError(f"{promise}; found {_short(found)}")


def _same(found: object, wanted: object, promise: str) -> None:
    if found != wanted:
        raise AssertionError(f"{promise}; found {_short(found)}, expected {_short(wanted)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 500 else f"{text[:497]}..."


@contextmanager
def _opened(open_journal: OpenJournal) -> Iterator[Journal]:
    journal = open_journal()
    try:
        yield journal
    except BaseException:
        # The check has its own error to tell; one in closing would hide it.
        with suppress(Exception):
            journal.close()
        raise
    journal.close()


def _loaded(journal: Journal) -> tuple[State, list[Event]]:
    state, happened = journal.load()
    return state, list(happened)


def _message(
    data: bytes,
    attributes: dict[str, str] | None = None,
    key: str = "",
    *,
    priority: int = 5,
    expires_at: int | None = None,
    deliver_at: int | None = None,
    max_attempts: int | None = None,
    content: int = 0,
    origin_at: int | None = None,
) -> StoredMessage:
    message = StoredMessage(START, data, attributes, key, priority, 0, expires_at, deliver_at, max_attempts, content, origin_at)
    message.size = size_of(message)
    return message


def _commit(stream: int, first: int, messages: list[StoredMessage]) -> Commit:
    """A publish, as a broker commits it."""
    return Commit(
        START, [Append(stream, first, START, summarize(messages))], [events.Published(stream, START, first, len(messages))]
    )


def _firsts() -> list[int]:
    return [sum(SIZES[:index]) for index in range(len(SIZES))]


def _fill(journal: Journal, streams: Iterable[int]) -> int:
    """Publish the same number of messages to each of some streams in commits of many sizes; returns that number."""
    for first, size in zip(_firsts(), SIZES, strict=True):
        appends = [
            Append(stream, first, START, summarize([_message(b"%d/%d" % (stream, at)) for at in range(first, first + size)]))
            for stream in streams
        ]
        journal.append(Commit(START, appends, [events.Published(append.stream, START, first, size) for append in appends]))
    return sum(SIZES)


def _record(journal: Journal) -> list[tuple[int, Event]]:
    """Append commits of records of many kinds; returns each record with the offset of its first event."""
    commits: list[list[Event]] = [
        [events.TopicCreated(1, START, "töpic \U0001f600")],
        [],
        [events.Leased(2, START, [0, 1, 2], START, 1, 0, START + 9, "wörker"), events.Acked(2, START, [0], START, 1)],
        [events.Returned(2, START, [1, 2], [START, START + 1], "nacked", [1, 2], START, "boom")],
        [events.Dropped(2, START, "purge", [(3, 5), (9, 10)]), events.Paused(2, START, True), events.Paused(2, START, False)],
        [events.DeadLettered(2, START, [1], START, "explicit_nack", "nacked", 1, "dead", None)],
    ]
    records: list[tuple[int, Event]] = []
    for commit in commits:
        journal.append(Commit(START, [], commit))
        for event in commit:
            records.append((records[-1][0] + records[-1][1].count if records else 0, event))
    return records


def _state(name: str) -> State:
    """A state with something in every corner."""
    queue = QueueImage(2, f"queue {name}", 1, START, Policy(ack_deadline=10, filter="attributes:k"), b"spec \xff", 9)
    queue.unsettled = [(1, 3), (5, 9)]
    queue.traces = {1: Trace(2, "böom", "nacked", True, START + 5), 2: Trace(1, deadline=START + 9, epoch=3, consumer="wörker")}
    queue.dead = {7: DeadLetterEntry(7, START, "ttl_expired", "ttl", START + 1, 0, None)}
    queue.consumers = {"wörker": None}
    topic = StreamImage(1, TOPIC, f"topic {name}", START, 9, START + 1, Producers({"prodücer": {1 << 62: (3, START)}}))
    return State(3, {1: topic, 3: StreamImage(3, QUEUE, "töpf", START)}, {2: queue}, {"märk": Position(2, 1, START, [(0, 2)], 4)})


def _messages(journal: Journal, stream: int, start: int, stop: int) -> dict[int, StoredMessage]:
    """What a range of a stream holds, by offset."""
    return {offset: message for offset, message in _unpacked(journal.read(stream, start, stop)) if start <= offset < stop}


def _unpacked(chunks: Iterable[tuple[Summary, Chunk]]) -> Iterator[tuple[int, StoredMessage]]:
    for summary, chunk in chunks:
        messages = chunk.messages(summary.published_at)
        _same((len(messages), chunk.count), (summary.count, summary.count), "a summary has the number of its messages")
        yield from enumerate(messages, summary.first)


def _check_summaries(journal: Journal, stream: int, total: int) -> None:
    for summary, chunk in journal.read(stream, 0, total):
        messages = chunk.messages(summary.published_at)
        truth = summarize(messages)
        wanted = Summary(summary.first, len(messages), truth.size, START, truth.priority, truth.keyed)
        _same(summary, wanted, "a summary agrees with its chunk")


def _snapshot(journal: Journal) -> object:
    streams = {stream: _messages(journal, stream, 0, 10_000) for stream in (6, 7, 8)}
    return streams, list(journal.read_events(0, 10_000)), journal.event_range()


def _check_reading(journal: Journal) -> None:
    spans = [(summary.first, summary.first + summary.count) for summary in journal.summaries(7, 0, 1 << 40)]
    _promise(all(one[1] <= two[0] for one, two in pairwise(spans)), "chunks are in order and apart", spans)
    end = spans[-1][1] if spans else 0
    at: int | None = None
    for offset, message in _unpacked(journal.read(7, max(end - 3 * GROUP, 0), 1 << 40)):
        _promise(at is None or offset == at + 1, "the newest offsets have no gap", (at, offset))
        _same(message.data, b"%d" % offset, "a message is at its offset")
        at = offset
    _promise(at is None or (at + 1) % GROUP == 0, "a commit is seen as a whole", at)
    stop = journal.event_range()[1]
    _promise(stop % GROUP == 0, "the events of a commit are seen as a whole", stop)
    seen = [event.count for _, event in journal.read_events(max(stop - 2 * GROUP, 0), stop)]
    _same(seen, [GROUP] * min(2, stop // GROUP), "events are whole up to the end of their range")
