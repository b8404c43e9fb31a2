"""`penstock hub …`: listen to topics, publish to them, and see which topics and actors there are."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from math import isfinite
from typing import TYPE_CHECKING

from penstock.cli import hub_listen, hub_token
from penstock.cli.arguments import duration
from penstock.cli.command import Parser, Verbs
from penstock.cli.hub_session import add_hub
from penstock.cli.hub_session import run as run_with_hub
from penstock.cli.input import lines
from penstock.cli.output import complain, count, printable, say, say_json, say_json_line, table, when
from penstock.cli.session import describe
from penstock.errors import InvalidArgument, PenstockError, Unavailable

if TYPE_CHECKING:
    from penstock.hub.client.client import HubClient
    from penstock.hub.client.messages import HubActor, HubTopic

STDIN = "-"
PAGE = 1_000
LOOK_SECONDS = 0.1
"""How often is looked whether somebody subscribes."""


def configure(parser: Parser) -> None:
    """The verbs."""
    verbs = Verbs(parser)
    hub_listen.configure(verbs)
    publish = verbs.add("publish", "publish messages to a topic, and say how many subscribers they reached", run_publish)
    publish.add_argument("topic", metavar="TOPIC")
    publish.add_argument(
        "data",
        metavar="DATA",
        nargs="+",
        help=f"a message each: JSON, or text; {STDIN} reads the standard input, a message a line",
    )
    publish.add_argument("--type", default="message", metavar="TYPE", help="what kind of message it is (default: message)")
    publish.add_argument("--ttl", type=duration, metavar="DURATION", help="for how long it is of use (default: always)")
    publish.add_argument("--wait", type=duration, metavar="DURATION", help="wait so long for somebody to subscribe first")
    topics = verbs.add("topics", "list the topics and patterns that have subscribers", run_topics)
    topics.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only those that begin with it")
    actors = verbs.add("actors", "list who is registered", run_actors)
    actors.add_argument(
        "--capability", action="append", default=[], metavar="WORD", help="only those that have it; may be given again"
    )
    info = verbs.add("info", "show what is known of a topic", run_info)
    info.add_argument("topic", metavar="TOPIC")
    for child in (publish, topics, actors, info):
        child.add_argument("--json", action="store_true", help="for programs")
        add_hub(child)
    hub_token.configure(verbs)


def run_publish(found: argparse.Namespace) -> int:
    """Publish each message when the one before is confirmed, so that they keep their order."""
    if STDIN in found.data and len(found.data) > 1:
        raise InvalidArgument(
            f"{STDIN} is given together with other DATA, wanted one or the other",
            hint=f"call it twice, or write all messages to the standard input, a line each, and give {STDIN} alone",
        )

    async def work(hub: HubClient) -> int:
        if found.wait is not None:
            await _somebody(hub, found.topic, found.wait)
        done = reached = 0
        has_warned, is_counted = False, found.data == [STDIN] and not found.json
        try:
            async for text in _texts(found.data):
                value = value_of(text)
                if value is text and text.lstrip().startswith(("{", "[")) and not has_warned:
                    complain("this looks like JSON and is none, so it is sent as text: " + printable(text[:60]))
                    has_warned = True
                published = await hub.publish(found.topic, value, type=found.type, ttl=found.ttl)
                done, reached = done + 1, published.subscriber_count
                if found.json:
                    say_json_line(published)
                elif not is_counted:
                    say(f"published to {published.topic}: {count(reached, 'subscriber')}")
        except (PenstockError, asyncio.CancelledError):
            if is_counted and done:
                complain(f"published {count(done, 'message')}, then it ended")
            raise
        if is_counted:
            say(
                f"published {count(done, 'message')} to {found.topic}"
                + (f"; the last reached {count(reached, 'subscriber')}" if done else "")
            )
        return 0

    return run_with_hub(found, work)


def value_of(text: str) -> object:
    """The data of a message: what the text says as JSON, or the text itself where it is none."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_number)
    except (ValueError, RecursionError):
        return text


def run_topics(found: argparse.Namespace) -> int:
    """A table by name."""

    async def work(hub: HubClient) -> int:
        rows: list[HubTopic] = []
        while page := await hub.topics(found.prefix, limit=PAGE, offset=len(rows)):
            rows += page
            if len(page) < PAGE:
                break
        if found.json:
            say_json(rows)
        elif not rows:
            complain("nobody subscribes to anything" + (f" that begins with {found.prefix}" if found.prefix else ""))
        else:
            say(table([["TOPIC", "SUBSCRIBERS"], *([one.name, f"{one.subscriber_count:,}"] for one in rows)]))
        return 0

    return run_with_hub(found, work)


def run_actors(found: argparse.Namespace) -> int:
    """A table by address, without the one that asks."""

    async def work(hub: HubClient) -> int:
        rows: list[HubActor] = []
        while page := await hub.discover(capabilities=found.capability, limit=PAGE, offset=len(rows)):
            rows += page
            if len(page) < PAGE:
                break
        rows = [one for one in rows if one.address != hub.address]
        if found.json:
            say_json(rows)
        elif not rows:
            complain("nobody is there")
        else:
            shown = ([one.address, ",".join(one.capabilities), when(one.registered_at)] for one in rows)
            say(table([["ADDRESS", "CAPABILITIES", "SINCE"], *shown]))
        return 0

    return run_with_hub(found, work)


def run_info(found: argparse.Namespace) -> int:
    """What is known of a topic."""

    async def work(hub: HubClient) -> int:
        info = await hub.topic_info(found.topic)
        place = None if info.position is None else f"{info.position.epoch}:{info.position.offset}"
        values = {
            "topic": info.name,
            "subscribers": info.subscriber_count,
            "by this very name": info.exact_count,
            "history": info.has_history,
            "bound to": info.bound_to,
            "position": place,
        }
        return describe(found, info, values)

    return run_with_hub(found, work)


async def _texts(data: list[str]) -> AsyncIterator[str]:
    if data != [STDIN]:
        for text in data:
            yield text
        return
    async for some in lines(0):
        for line in some:
            try:
                yield line.decode()
            except UnicodeDecodeError:
                raise InvalidArgument.of("a line of the standard input", line, "UTF-8") from None


async def _somebody(hub: HubClient, topic: str, seconds: float) -> None:
    """Return when somebody subscribes to a topic."""
    try:
        async with asyncio.timeout(seconds):
            while not (await hub.topic_info(topic)).subscriber_count:  # noqa: ASYNC110  # nobody tells of it
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise Unavailable(
            f"nobody subscribed to {topic} in {seconds:g} s; nothing was published",
            hint="subscribe first, as `penstock hub listen` does, wait longer, or leave --wait out",
        ) from None


def _no_number(word: str) -> object:
    raise ValueError(word)


def _number(word: str) -> float:
    """A number, unless it is beyond what there are: it would become infinite, and then null."""
    value = float(word)
    if not isfinite(value):
        raise ValueError(word)
    return value
