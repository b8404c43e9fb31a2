"""`penstock pipeline redrive`: dead letters that a condition in SQL selects, delivered again, each once."""

from __future__ import annotations

import argparse
import asyncio
import secrets
from typing import TYPE_CHECKING

from penstock.cli.arguments import whole
from penstock.cli.command import Parser
from penstock.cli.input import add_yes, confirm
from penstock.cli.output import Progress, clipped, complain, say, say_json, table, when
from penstock.cli.pipeline_run import add_log, add_spark, check, log_of, spark_session, told_to_stop
from penstock.cli.pipeline_triage import add_letters
from penstock.clock import SystemClock
from penstock.durations import to_datetime
from penstock.errors import InvalidArgument
from penstock.values.wording import count, span

if TYPE_CHECKING:
    from penstock.pipeline.core.redrive import Redrive, RedrivePlan, TargetState

ERROR_WIDTH = 60


def configure(parser: Parser) -> None:
    """Which letters, how fast, and the name."""
    add_letters(parser)
    parser.add_argument(
        "--sql",
        metavar="CONDITION",
        help='only those that fulfil a condition, as in "status = 503 AND payload:amount::int > 100"',
    )
    parser.add_argument("--limit", metavar="N", type=whole(1), help="at most N, the oldest first")
    parser.add_argument("--rate", metavar="N", type=float, help="at most N a second (default: no limit)")
    parser.add_argument(
        "--redrive-id", metavar="ID", help="its name: repeated with the same arguments it continues (default: a random one)"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the plan, and move nothing")
    add_yes(parser)
    add_log(parser)
    add_spark(parser)


def run(found: argparse.Namespace) -> int:
    """Show the plan, ask, and move the letters."""
    clock = SystemClock()
    redrive = redrive_of(found, clock.now())
    target = log_of(found)
    if target.endpoint is None and not found.dry_run:
        raise InvalidArgument(
            "a redrive writes, and a data directory can only be read",
            hint="start a server on it, and name that with --server URL",
        )
    check(target, names=found.streams or None)
    from penstock.pipeline.failure import as_penstock_error  # noqa: PLC0415  # errors above need no Spark
    from penstock.pipeline.jobs import redrive as job  # noqa: PLC0415
    from penstock.pipeline.redriving import begin, log_of_server, move  # noqa: PLC0415

    note = job.note_of(target, redrive)
    is_named = found.redrive_id is not None and not found.dry_run
    kept = begin(target, redrive, note) if is_named else note
    with spark_session(found, "redrive") as spark, as_penstock_error():
        plan = job.plan(spark, target, redrive, kept, clock.now())
    is_continued = kept != note
    if found.dry_run or not plan.letters:
        show(found, redrive, plan, is_continued=is_continued)
        return 0
    if not found.json:
        show(found, redrive, plan, is_continued=is_continued)
    asyncio.run(confirm(found, deed(plan)))
    if not is_named:
        begin(target, redrive, note)
    with told_to_stop() as stop, log_of_server(target) as log, Progress("redriving", len(plan.letters)) as progress:
        done = move(log, redrive, plan.letters, clock, stop.wait, moved=progress.advance)
    tell(found, redrive, plan, done, len(plan.letters) - progress.done)
    return 0


def redrive_of(found: argparse.Namespace, now: int) -> Redrive:
    """What the flags say."""
    from penstock.pipeline.core.dead_letters import VERSIONS  # noqa: PLC0415
    from penstock.pipeline.core.redrive import Redrive  # noqa: PLC0415

    bounds = {"since": found.since, "until": found.until}
    return Redrive(
        redrive_id=found.redrive_id or secrets.token_hex(6),
        streams=tuple(found.streams),
        sql=found.sql,
        since=found.since and found.since.at(now),
        until=found.until and found.until.at(now),
        ago={name: past.text for name, past in bounds.items() if past is not None and past.instant is None},
        limit=found.limit,
        rate=found.rate,
        version_attributes=tuple(found.version_attribute or VERSIONS),
    )


def deed(plan: RedrivePlan) -> str:
    """What a person says yes to."""
    failing = [state.name for state in plan.targets if state.is_failing]
    warning = f", although {' and '.join(failing)} still {'fail' if len(failing) > 1 else 'fails'}" if failing else ""
    return f"redrive {count(len(plan.letters), 'dead letter')}{warning}"


def show(found: argparse.Namespace, redrive: Redrive, plan: RedrivePlan, *, is_continued: bool) -> None:
    """The plan, and whether the targets still fail."""
    if found.json:
        say_json(document(redrive, plan, {}))
        return
    if not plan.letters:
        complain("no dead letters are left to redrive" if is_continued else "no dead letters match")
        return
    lasts = f", over {span(len(plan.letters) / redrive.rate)}" if redrive.rate else ""
    left = " that are left" if is_continued else ""
    say(f"{count(len(plan.letters), 'dead letter')}{left}{lasts}:")
    rows = []
    for source, many in plan.counts.items():
        died = [letter.died_at for letter in plan.letters if letter.source == source]
        rows.append([source, f"{many:,}", when(to_datetime(min(died))), when(to_datetime(max(died)))])
    say(table([["TO", "COUNT", "FIRST DIED", "LAST DIED"], *rows]))
    say("")
    for state in plan.targets:
        say(sentence(state))
    if not plan.targets:
        say("nothing was delivered there in the last 15 minutes: whether it works now is not known")


def sentence(state: TargetState) -> str:
    """Whether a target still fails."""
    tried = state.successes + state.failures
    said = f"{state.failures:,} of {count(tried, 'delivery', 'deliveries')} in the last 15 minutes failed"
    if state.is_failing:
        return f"{state.name} still fails: {said}; the last with {clipped(state.error, ERROR_WIDTH)!r}"
    return f"{state.name} works: its last delivery succeeded; {said}"


def tell(found: argparse.Namespace, redrive: Redrive, plan: RedrivePlan, done: dict[str, int], left: int) -> None:
    """What was done."""
    if found.json:
        say_json(document(redrive, plan, done))
        return
    total = sum(done.values())
    say(f"redrove {count(total, 'dead letter')} with the redrive id {redrive.redrive_id}")
    if left:
        complain(f"{count(left, 'dead letter')} left: the same command with --redrive-id {redrive.redrive_id} continues")


def document(redrive: Redrive, plan: RedrivePlan, done: dict[str, int]) -> dict[str, object]:
    """For programs."""
    return {
        "redrive_id": redrive.redrive_id,
        "letters": len(plan.letters),
        "sources": plan.counts,
        "redriven": done,
        "targets": [
            {
                "name": state.name,
                "is_failing": state.is_failing,
                "successes": state.successes,
                "failures": state.failures,
                "last_success": state.last_success,
                "last_failure": state.last_failure,
                "error": state.error,
            }
            for state in plan.targets
        ],
    }
