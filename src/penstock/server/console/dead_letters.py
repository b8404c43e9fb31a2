"""The page of dead letters: groups of all queues, a selection that is frozen by its preview, and jobs that redrive it.

Groups are rebuilt only for queues whose list has changed. A job belongs to the server: it continues when the page is closed,
and every console sees it.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from penstock.access import Right, Verb
from penstock.broker import work_queues
from penstock.broker.aio import AsyncBroker
from penstock.client.core.dead_letter_filter import DeadLetterFields, DeadLetterFilter
from penstock.durations import instant, to_datetime
from penstock.errors import FailedPrecondition, InvalidArgument, NotFound, PenstockError, QueueNotFound
from penstock.http.request import Request
from penstock.http.routes import Operation, Parameter, Reply, Route
from penstock.ids import message_id, parse_message_id
from penstock.journal.core.checkpoint import DeadLetterEntry
from penstock.server.console.audit import Audit
from penstock.server.console.core.dead_letters import FIRST, Group, Letter, fails_again, group_id, grouped, of_letter
from penstock.server.console.payloads import Payload, Payloads, payload
from penstock.server.console.requests import (
    PROJECT,
    TAGS,
    Action,
    Caller,
    CallerOf,
    Confirmation,
    Limit,
    Name,
    NoParameters,
    Nothing,
    Offset,
    Text,
    View,
    project_of,
)
from penstock.server.console.sampler import QueueRow, Sampler
from penstock.server.console.streams import StreamPages
from penstock.values.queue import task_name
from penstock.values.wording import count, moment
from penstock.wire.reasons import died_of

LETTER_BYTES = 2_048
"""How many bytes of a payload a row shows."""
BATCH = 100
MAX_SELECTIONS = 32
SELECTION_SECONDS = 900.0
MAX_JOBS = 50
MAX_RATE = 10_000
REGROUP_SECONDS = 2.0
_LIGHT = frozenset({"reason", "error", "id", "attempts", "age"})
"""The fields that a condition can use without the message itself."""


class Source(msgspec.Struct, frozen=True):
    """A source of dead letters."""

    kind: Literal["queue"]
    name: str


class GroupLine(msgspec.Struct, kw_only=True):
    """A group."""

    id: str
    source: Source
    reason: str
    reason_text: str
    signature: str
    example: str
    count: int
    first_at: datetime
    last_at: datetime
    trend: list[int]
    again: int
    newest: list[str]


class GroupListing(msgspec.Struct, kw_only=True):
    """All groups."""

    at: datetime
    total: int
    is_bounded: bool
    groups: list[GroupLine]


class LetterQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A query for dead letters."""

    source: Name
    group: Text = ""
    where: Annotated[str, Meta(max_length=10_000)] = ""
    offset: Offset = 0
    limit: Limit = 50


class LetterLine(msgspec.Struct, kw_only=True):
    """A dead letter."""

    message_id: str
    offset: int
    reason: str
    reason_text: str
    error: str | None
    attempts: int
    died_at: datetime
    published_at: datetime
    size: int | None
    attributes: dict[str, str]
    payload: Payload | None
    again: bool


class LetterListing(msgspec.Struct, kw_only=True):
    """A page of letters, the newest first."""

    matched: int
    offset: int
    rows: list[LetterLine]


class Selecting(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A condition that selects dead letters."""

    source: Name
    group: Text | None = None
    where: Annotated[str, Meta(max_length=10_000)] | None = None
    message_ids: Annotated[list[str], Meta(max_length=10_000)] | None = None


class Preview(msgspec.Struct, kw_only=True):
    """What an action would do, and the selection to do it with."""

    selection: str
    matched: int
    oldest_at: datetime | None
    again: int
    newer: int
    is_paused: bool
    consumers: int
    text: list[str]


class Redriving(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Redrive a selection: all of it or the oldest `limit`, at most `rate` a second."""

    selection: Name
    limit: Annotated[int, Meta(ge=1)] | None = None
    rate: Annotated[float, Meta(gt=0, le=MAX_RATE)] | None = None


class Purging(Confirmation, kw_only=True, forbid_unknown_fields=True):
    """Remove a selection."""

    selection: Name


class PurgedReply(msgspec.Struct):
    """How many letters were removed."""

    purged: int


class ById(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job."""

    id: Name


class JobLine(msgspec.Struct, kw_only=True):
    """A redrive, and the results for the letters that it moved."""

    id: str
    kind: Literal["redrive"]
    source: Source
    state: Literal["running", "done", "stopped", "failed"]
    total: int
    moved: int
    acked: int
    waiting: int
    dead_again: int
    left: int
    taken_back: int
    rate: float | None
    started_at: datetime
    ended_at: datetime | None
    by: str | None
    text: str


class JobListing(msgspec.Struct):
    """The newest jobs first."""

    jobs: list[JobLine]


@dataclass(slots=True)
class Selection:
    """Letters of a queue at one moment."""

    project: str
    name: str
    number: int
    letters: list[Letter]
    made_at: float


@dataclass(slots=True)
class Job:
    """A redrive."""

    id: str
    caller: Caller
    selection: Selection
    letters: list[Letter]
    rate: float | None
    started_at: int
    state: Literal["running", "done", "stopped", "failed"] = "running"
    moved: list[Letter] = field(default_factory=list)
    taken_back: int = 0
    ended_at: int | None = None
    text: str = ""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class DeadLetterPages:
    """Views and actions for dead letters; redrives them."""

    def __init__(self, aio: AsyncBroker, sampler: Sampler, streams: StreamPages, payloads: Payloads, audit: Audit) -> None:
        self._aio, self._broker, self._sampler = aio, aio.broker, sampler
        self._streams, self._payloads, self._audit = streams, payloads, audit
        self._loop = asyncio.get_running_loop()
        self._groups: dict[int, tuple[tuple[int, int, int], float, list[Group]]] = {}
        self._moved: dict[int, set[int]] = defaultdict(set)
        """By the queue's number: the letters that were redriven here."""
        self._selections: OrderedDict[str, Selection] = OrderedDict()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._moving = asyncio.Lock()
        self._numbers = itertools.count(1)

    def views(self) -> list[View[Any]]:
        path = "/console/api"
        return [
            View("dead", f"{path}/dead", "Dead letters in groups", NoParameters, self.groups, GroupListing),
            View("letters", f"{path}/dead/letters", "Dead letters of a queue", LetterQuery, self.letters, LetterListing),
            View("jobs", f"{path}/jobs", "Redrives", NoParameters, self.jobs, JobListing),
            View("job", f"{path}/jobs/{{id}}", "A redrive", ById, self.job, JobLine),
        ]

    def actions(self) -> list[Action[Any]]:
        path = "/console/api"
        return [
            Action(f"{path}/dead/preview", "Select dead letters", Selecting, self.preview, Preview, max_bytes=1024 * 1024),
            Action(f"{path}/dead/redrive", "Redrive dead letters", Redriving, self.redrive, JobLine),
            Action(f"{path}/dead/purge", "Remove dead letters", Purging, self.purge, PurgedReply),
            Action(f"{path}/jobs/{{id}}/stop", "Stop a redrive", Nothing, self.stop_job, JobLine),
            Action(f"{path}/jobs/{{id}}/take-back", "Take back a redrive", Nothing, self.take_back, JobLine),
        ]

    def stop(self) -> None:
        """End all jobs."""
        for job in self._jobs.values():
            if job.task is not None:
                job.task.cancel()

    def export(self, caller_of: CallerOf) -> Route:
        """The route that downloads a selection."""

        async def handle(request: Request) -> web.StreamResponse:
            caller = caller_of(request.principal, project_of(request))
            selection = self._selected(caller, request.query.get("selection", ""))
            caller.principal.check(Right.SEE, caller.project, selection.name, kind="queue")
            if self._payloads.visibility(caller, selection.name) != "shown":
                raise FailedPrecondition("payloads are hidden", hint="console_payloads is `hidden` in the settings of the server")
            headers = {"Content-Disposition": 'attachment; filename="dead-letters.ndjson"', "X-Content-Type-Options": "nosniff"}
            response = web.StreamResponse(headers={**headers, "Content-Type": "application/x-ndjson"})
            await response.prepare(request)
            async for line in self._exported(caller, selection):
                await response.write(line)
            await response.write_eof()
            return response

        parameters = (Parameter("selection", "The selection of a preview.", Name, required=True), PROJECT)
        reply = Reply("One letter a line.", {"type": "string"}, "application/x-ndjson")
        operation = Operation("Download dead letters", "", TAGS, parameters, replies={200: reply})
        return Route("GET", "/console/api/dead/export", handle, operation, verb=Verb.READ)

    # ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def groups(self, caller: Caller, _: NoParameters) -> GroupListing:
        """All groups that the caller may see."""
        await self._sampler.sample()
        rows = [row for row in self._sampler.queue_rows(caller, work_queues=True) if row.counters.dead]
        now = self._broker.clock.now()
        lines = []
        for row in rows:
            lines += [_group_line(row, group, now) for group in await self._groups_of(row)]
        lines.sort(key=lambda line: line.last_at, reverse=True)
        total = sum(row.counters.dead for row in rows)
        return GroupListing(at=to_datetime(now), total=total, is_bounded=False, groups=lines)

    async def letters(self, caller: Caller, asked: LetterQuery) -> LetterListing:
        """Letters of one queue."""
        row = await self._row(caller, asked.source)
        found = await self._matching(caller, row, asked.group, asked.where)
        shown = found[::-1][asked.offset : asked.offset + asked.limit]
        state, number = self._payloads.visibility(caller, row.name), row.counters.stream
        rows = []
        for letter in shown:
            stored = await self._streams.find(number, letter.offset)
            rows.append(
                LetterLine(
                    message_id=message_id(letter.publish_at, number, letter.offset),
                    offset=letter.offset,
                    reason=letter.reason,
                    reason_text=died_of(letter.reason),
                    error=letter.error,
                    attempts=letter.attempts,
                    died_at=to_datetime(letter.at),
                    published_at=to_datetime(letter.publish_at),
                    size=None if stored is None else stored.size,
                    attributes={} if stored is None else self._payloads.attributes(caller, row.name, stored),
                    payload=None if stored is None else payload(stored, state, LETTER_BYTES),
                    again=letter.offset in self._moved[row.counters.number],
                )
            )
        return LetterListing(matched=len(found), offset=asked.offset, rows=rows)

    async def jobs(self, caller: Caller, _: NoParameters) -> JobListing:
        """Jobs that the caller may see, the newest first."""
        caller.principal.check(Verb.READ, caller.project)
        mine = [job for job in reversed(self._jobs.values()) if self._is_visible(caller, job)]
        return JobListing([await self._job_line(job) for job in mine])

    async def job(self, caller: Caller, asked: ById) -> JobLine:
        """One job."""
        return await self._job_line(self._job(caller, asked.id))

    # ── actions ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def preview(self, caller: Caller, _: dict[str, str], body: Selecting) -> Preview:
        """Freeze a selection."""
        row = await self._row(caller, body.source)
        caller.principal.check(Verb.MANAGE, caller.project, row.name, kind="queue")
        letters = await self._matching(caller, row, body.group or "", body.where or "")
        if body.message_ids is not None:
            wanted = {place[2] for place in map(parse_message_id, body.message_ids) if place and place[1] == row.counters.stream}
            letters = [letter for letter in letters if letter.offset in wanted]
        number = row.counters.number
        newer = 0
        if letters:
            newest = max(letter.offset for letter in letters)
            newer = await self._aio.call(work_queues.waiting_after, self._broker, number, newest)
        again = sum(letter.offset in self._moved[number] for letter in letters)
        name = f"s-{secrets.token_hex(8)}"
        self._selections[name] = Selection(caller.project, row.name, number, letters, self._loop.time())
        while len(self._selections) > MAX_SELECTIONS:
            self._selections.popitem(last=False)
        oldest = min((letter.at for letter in letters), default=None)
        return Preview(
            selection=name,
            matched=len(letters),
            oldest_at=None if oldest is None else to_datetime(oldest),
            again=again,
            newer=newer,
            is_paused=row.counters.is_paused,
            consumers=row.counters.consumers,
            text=_preview_text(row, len(letters), oldest, again, newer),
        )

    async def redrive(self, caller: Caller, _: dict[str, str], body: Redriving) -> JobLine:
        """Start a job."""
        selection = self._selected(caller, body.selection)
        caller.principal.check(Verb.MANAGE, caller.project, selection.name, kind="queue")
        letters = selection.letters[: body.limit]
        job = Job(f"j-{next(self._numbers)}", caller, selection, letters, body.rate, self._broker.clock.now())
        self._jobs[job.id] = job
        for old in [one for one in self._jobs.values() if one.state != "running"][: max(len(self._jobs) - MAX_JOBS, 0)]:
            del self._jobs[old.id]
        job.task = self._loop.create_task(self._run(job))
        return await self._job_line(job)

    async def purge(self, caller: Caller, _: dict[str, str], body: Purging) -> PurgedReply:
        """Remove a selection from the list."""
        selection = self._selected(caller, body.selection)
        caller.principal.check(Verb.MANAGE, caller.project, selection.name, kind="queue")
        body.check(selection.name)
        row = await self._row(caller, f"queue:{selection.name}")
        ids = [message_id(letter.publish_at, row.counters.stream, letter.offset) for letter in selection.letters]
        purged = await caller.operations.purge_dead_letters(selection.name, ids)
        await self._audit.record(caller, "purge_dead_letters", selection.name, purged)
        self._sampler.invalidate()
        return PurgedReply(purged)

    async def stop_job(self, caller: Caller, path: dict[str, str], _: Nothing) -> JobLine:
        """Stop moving letters."""
        job = self._managed(caller, path["id"])
        job.stopping.set()
        if job.task is not None:
            await asyncio.wait([job.task])
        return await self._job_line(job)

    async def take_back(self, caller: Caller, path: dict[str, str], _: Nothing) -> JobLine:
        """Turn redriven letters that were not leased since into dead letters again."""
        job = self._managed(caller, path["id"])
        await self.stop_job(caller, path, _)
        selection = job.selection
        scoped = caller.operations.queues.scoped(caller.project, selection.name, "queue")
        entries = [_entry(letter) for letter in job.moved]
        taken = set(await self._aio.call(work_queues.take_back, self._broker, scoped, entries))
        moved = len(job.moved)
        job.moved = [letter for letter in job.moved if letter.offset not in taken]
        self._moved[selection.number] -= taken
        job.taken_back += len(taken)
        job.text = f"{job.taken_back:,} taken back, {moved - len(taken):,} already delivered"
        await self._audit.record(caller, "take_back", selection.name, len(taken))
        self._sampler.invalidate()
        return await self._job_line(job)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self, job: Job) -> None:
        name, stream = job.selection.name, job.selection.number
        batch = BATCH if job.rate is None else max(min(int(job.rate), BATCH), 1)
        try:
            for start in range(0, len(job.letters), batch):
                due = self._loop.time() + (batch / job.rate if job.rate is not None else 0)
                part = job.letters[start : start + batch]
                ids = [message_id(letter.publish_at, stream, letter.offset) for letter in part]
                async with self._moving:  # of two jobs with the same letters, one moves each of them
                    there = {letter.offset for letter in await self._entries(stream)}
                    await job.caller.operations.redrive_dead_letters(name, message_ids=ids)
                job.moved += [letter for letter in part if letter.offset in there]
                self._moved[stream].update(letter.offset for letter in part if letter.offset in there)
                if await self._is_failing(job):
                    job.state, job.text = "stopped", f"stopped by itself: more than half of the first {FIRST} died again"
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(max(due, self._loop.time())):
                        await job.stopping.wait()
                if job.stopping.is_set():
                    job.state, job.text = "stopped", "stopped"
                    break
            else:
                job.state = "done"
        except PenstockError as error:
            job.state, job.text = "failed", str(error)
        job.ended_at = self._broker.clock.now()
        await self._audit.record(job.caller, "redrive_dead_letters", name, len(job.moved))
        self._sampler.invalidate()

    async def _is_failing(self, job: Job) -> bool:
        first = [letter.offset for letter in job.moved[:FIRST]]
        found = await self._aio.call(work_queues.fates, self._broker, job.selection.number, first)
        return fails_again(found.dead, len(job.moved))

    async def _job_line(self, job: Job) -> JobLine:
        moved = [letter.offset for letter in job.moved]
        found = await self._aio.call(work_queues.fates, self._broker, job.selection.number, moved)
        return JobLine(
            id=job.id,
            kind="redrive",
            source=Source("queue", job.selection.name),
            state=job.state,
            total=len(job.letters),
            moved=len(moved),
            acked=found.settled,
            waiting=found.waiting + found.leased,
            dead_again=found.dead,
            left=len(job.letters) - len(moved) - job.taken_back,
            taken_back=job.taken_back,
            rate=job.rate,
            started_at=to_datetime(job.started_at),
            ended_at=None if job.ended_at is None else to_datetime(job.ended_at),
            by=job.caller.principal.token_id or None,
            text=job.text,
        )

    def _is_visible(self, caller: Caller, job: Job) -> bool:
        is_ours = job.selection.project == caller.project
        return is_ours and caller.principal.may(Verb.READ, caller.project, job.selection.name)

    def _job(self, caller: Caller, name: str) -> Job:
        job = self._jobs.get(name)
        if job is None or not self._is_visible(caller, job):
            raise NotFound(name[:100])
        return job

    def _managed(self, caller: Caller, name: str) -> Job:
        job = self._job(caller, name)
        caller.principal.check(Verb.MANAGE, caller.project, job.selection.name, kind="queue")
        return job

    def _selected(self, caller: Caller, name: str) -> Selection:
        found = self._selections.get(name)
        is_ours = found is not None and found.project == caller.project
        if found is None or not is_ours or self._loop.time() - found.made_at > SELECTION_SECONDS:
            raise FailedPrecondition(
                "the selection is not there any more", hint="preview it again: a selection is kept for 15 minutes"
            )
        return found

    async def _row(self, caller: Caller, source: str) -> QueueRow:
        kind, _, name = source.partition(":")
        if kind != "queue" or not name:
            raise InvalidArgument.of("source", source, "queue:NAME")
        caller.principal.check(Verb.READ, caller.project, name, kind="queue")
        await self._sampler.sample()
        rows = self._sampler.queue_rows(caller, work_queues=True)
        row = next((row for row in rows if row.name == name), None)
        if row is None:
            raise QueueNotFound(name)
        return row

    async def _entries(self, number: int) -> list[DeadLetterEntry]:
        return await self._aio.call(work_queues.dead_letter_entries, self._broker, number)

    async def _groups_of(self, row: QueueRow) -> list[Group]:
        number, moved = row.counters.number, self._moved[row.counters.number]
        version = (row.counters.dead, row.counters.dead_lettered, len(moved))
        known = self._groups.get(number)
        now = self._loop.time()
        if known is not None and (known[0] == version or now - known[1] < REGROUP_SECONDS):
            return known[2]
        letters = [_letter(entry) for entry in await self._entries(number)]
        groups = await self._aio.call(grouped, letters, frozenset(moved))
        self._groups[number] = (version, now, groups)
        for gone in self._groups.keys() - self._sampler.queues.keys():
            del self._groups[gone]
        return groups

    async def _matching(self, caller: Caller, row: QueueRow, group: str, where: str) -> list[Letter]:
        """The letters of a queue that match, oldest first."""
        letters = [_letter(entry) for entry in await self._entries(row.counters.number)]
        if group:
            letters = [letter for letter in letters if group == f"q:{row.name}:{group_id(*of_letter(letter))}"]
        if not where.strip():
            return letters
        condition = DeadLetterFilter.parse(where)
        now, stream = self._broker.clock.now(), row.counters.stream
        if all(one.field in _LIGHT for one in condition.conditions):
            return [letter for letter in letters if condition.matches(_light(letter, stream), now)]
        by_id = {message_id(letter.publish_at, stream, letter.offset): letter for letter in letters}
        found = []
        for start in range(0, len(by_id), BATCH):
            ids = [*by_id][start : start + BATCH]
            for letter in await caller.operations.list_dead_letters(row.name, message_ids=ids):
                fields = DeadLetterFields(
                    message_id=letter.message.message_id,
                    reason=letter.reason,
                    error=letter.last_error,
                    attempts=letter.attempts,
                    priority=letter.message.priority,
                    dead_at=instant(letter.dead_lettered_at, "dead_lettered_at"),
                    headers=letter.message.headers,
                    task=task_name(letter.message.payload),
                )
                if condition.matches(fields, now):
                    found.append(by_id[letter.message.message_id])
        return found

    async def _exported(self, caller: Caller, selection: Selection) -> AsyncIterator[bytes]:
        ids = [message_id(letter.publish_at, selection.number, letter.offset) for letter in selection.letters]
        for one in ids:
            for letter in await caller.operations.list_dead_letters(selection.name, message_ids=[one]):
                yield msgspec.json.encode(letter) + b"\n"


def _letter(entry: DeadLetterEntry) -> Letter:
    return Letter(entry.offset, entry.publish_at, entry.reason, entry.at, entry.attempts, entry.error)


def _entry(letter: Letter) -> DeadLetterEntry:
    return DeadLetterEntry(letter.offset, letter.publish_at, letter.reason, "buried", letter.at, letter.attempts, letter.error)


def _light(letter: Letter, stream: int) -> DeadLetterFields:
    return DeadLetterFields(
        message_id=message_id(letter.publish_at, stream, letter.offset),
        reason=letter.reason,
        error=letter.error,
        attempts=letter.attempts,
        priority=0,
        dead_at=letter.at,
    )


def _group_line(row: QueueRow, group: Group, now: int) -> GroupLine:
    stream = row.counters.stream
    return GroupLine(
        id=f"q:{row.name}:{group.id}",
        source=Source("queue", row.name),
        reason=group.reason,
        reason_text=died_of(group.reason),
        signature=group.signature,
        example=group.example,
        count=group.count,
        first_at=to_datetime(group.first),
        last_at=to_datetime(group.last),
        trend=group.trend(now),
        again=group.again,
        newest=[message_id(letter.publish_at, stream, letter.offset) for letter in reversed(group.newest)],
    )


def _preview_text(row: QueueRow, matched: int, oldest: int | None, again: int, newer: int) -> list[str]:
    if oldest is None:
        return [f"No letters of {row.name} match."]
    fit = "matches" if matched == 1 else "match"
    text = [f"{count(matched, 'letter')} of {row.name} {fit}, the oldest died at {moment(to_datetime(oldest))}."]
    if again:
        text.append(f"{again:,} {'was' if again == 1 else 'were'} redriven before and died again.")
    if newer:
        text.append(f"They come back at their place in age, so before {count(newer, 'newer message')}.")
    if row.counters.is_paused:
        text.append("The queue is paused: nothing will move.")
    if not row.counters.consumers:
        text.append("No consumer has taken anything from it yet.")
    return text
