"""`penstock hub listen`: what is published to topics, a line each, as it comes."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, TypeVar

from penstock.cli.arguments import whole
from penstock.cli.command import Verbs
from penstock.cli.hub_session import add_hub
from penstock.cli.hub_session import run as run_with_hub
from penstock.cli.output import complain, count, paint, printable, say, say_json_line, span
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from penstock.client import Position
    from penstock.hub.client.client import HubClient
    from penstock.hub.client.core.following import Gap
    from penstock.hub.client.messages import ConnectionNews, HubMessage, HubMessages, Key, Presence

T = TypeVar("T")
MAX_SHOWN = 10_000
"""Of how many messages is known that they were shown, where several patterns may bring the same."""


def configure(verbs: Verbs) -> None:
    """Add it."""
    listen = verbs.add("listen", "show what is published to topics, as it comes", run_listen)
    listen.add_argument(
        "patterns", metavar="PATTERN", nargs="+", help="a topic, or a pattern such as 'orders/#' or 'orders/+/new'"
    )
    listen.add_argument("--count", type=whole(1), metavar="N", help="stop after so many messages (default: Ctrl-C stops it)")
    listen.add_argument(
        "--since", type=position, metavar="EPOCH:OFFSET", help="begin with what came after that position, of a topic with history"
    )
    listen.add_argument(
        "--durable", action="store_true", help="receive what was published while away too; needs --as, and acks what was shown"
    )
    listen.add_argument("--presence", action="store_true", help="show who else subscribes: who is there, who joins and leaves")
    listen.add_argument("--json", action="store_true", help="a document on each line (default: when the output is no terminal)")
    add_hub(listen)


def position(text: str) -> tuple[str, int]:
    """(epoch, offset) of `EPOCH:OFFSET`."""
    epoch, colon, offset = text.rpartition(":")
    if not colon or not epoch or not offset.isascii() or not offset.isdecimal() or len(offset) > 15:
        raise argparse.ArgumentTypeError(f"{text!r} is not EPOCH:OFFSET, as `penstock hub listen` shows it when it ends")
    return epoch, int(offset)


def run_listen(found: argparse.Namespace) -> int:
    """Show messages until there were enough."""
    if found.durable and found.address is None:
        raise InvalidArgument(
            "--durable is given without --as", hint="messages wait for an address: say whose, as in --as '@(shop/billing)'"
        )
    if found.durable and found.since is not None:
        raise InvalidArgument(
            "--durable and --since are given together, wanted one or the other",
            hint="a durable subscription knows by itself where it is: leave --since out",
        )
    if found.since is not None and len(found.patterns) > 1:
        raise InvalidArgument("--since is given with several patterns, wanted one", hint="a position belongs to one of them")
    listener = _Listener(found)
    return run_with_hub(found, listener.listen, on_connection=listener.connection)


class _Listener:
    """Shows what comes."""

    def __init__(self, found: argparse.Namespace) -> None:
        self._found = found
        self._is_json = found.json or not sys.stdout.isatty()
        self._done = 0
        self._last: Position | None = None
        self._began = monotonic()
        self._is_lost = False
        self._gaps: list[Gap] = []
        """What is to be told once the connection is."""
        self._shown: OrderedDict[Key, None] = OrderedDict()
        self._can_go_on = False
        self._unheard: OSError | None = None
        """What became of news that nobody reads any more: the pipe is closed."""
        self._is_over = asyncio.Event()

    async def listen(self, hub: HubClient) -> int:
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(self._subscribe(hub, pattern)) for pattern in self._found.patterns]
            complain(f"listening to {' '.join(self._found.patterns)} as {hub.address}; Ctrl-C ends it")
            try:
                self._can_go_on = len(streams) == 1 and not self._found.durable and await _has_history(hub, streams[0])
                await self._show(streams)
            finally:
                try:
                    self._sum_up()
                finally:
                    await hub.close()  # its subscriptions end with it: not one after the other, should the server not answer
        return 0

    def _subscribe(self, hub: HubClient, pattern: str) -> HubMessages:
        from penstock.client import Position  # noqa: PLC0415  # `--help` needs none of it

        found = self._found
        return hub.subscribe(
            pattern,
            durable=found.durable,
            since=None if found.since is None else Position(*found.since),
            on_gap=self._tell(self._gap),
            on_presence=self._tell(self._presence) if found.presence else None,
        )

    async def _show(self, streams: list[HubMessages]) -> None:
        """Show what comes on any of them, until there was enough."""
        tasks = [asyncio.create_task(one) for one in (self._heed(), *map(self._follow, streams))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _heed(self) -> None:
        """End it when there is nobody to tell."""
        await self._is_over.wait()
        if self._unheard is not None:
            raise self._unheard

    async def _follow(self, messages: HubMessages) -> None:
        async for message in messages:
            if self._done == self._found.count:
                return  # another pattern brought the last one
            if not self._is_shown(message):
                self._message(message)
                # Not before: what nobody could read is still to come.
                self._done += 1
                self._last = message.position or self._last
            if self._found.durable:
                with suppress(Unavailable):  # the client says it again when the message comes again
                    await message.ack()
            if self._done == self._found.count:
                return

    def _is_shown(self, message: HubMessage) -> bool:
        """Whether another of the patterns brought it before."""
        if len(self._found.patterns) == 1:
            return False
        if message.key in self._shown:
            return True
        self._shown[message.key] = None
        if len(self._shown) > MAX_SHOWN:
            self._shown.popitem(last=False)
        return False

    def _tell(self, tell: Callable[[T], None]) -> Callable[[T], None]:
        """What a client calls with news: it would only log that nobody reads them."""

        def told(news: T) -> None:
            try:
                tell(news)
            except OSError as error:
                self._unheard = error
                self._is_over.set()

        return told

    def connection(self, news: ConnectionNews) -> None:
        """A connection was lost, or there is one again."""
        self._tell(self._connection)(news)

    def _connection(self, news: ConnectionNews) -> None:
        if not news.is_connected:
            wait = "now" if not news.retry_in else f"in {span(news.retry_in)}"
            complain(f"{'still no' if self._is_lost else 'lost the'} connection: {news.problem}; trying again {wait}")
        elif self._is_lost:
            complain("connected again")
        self._is_lost = not news.is_connected
        if news.is_connected:
            for gap in self._gaps:
                complain(str(gap))
            self._gaps.clear()

    def _message(self, message: HubMessage) -> None:
        if self._is_json:
            say_json_line(
                {
                    "topic": message.topic,
                    "type": message.type,
                    "from": message.sender,
                    "data": message.data,
                    "id": message.id,
                    "sent_at": message.sent_at,
                    "position": message.position,
                    "gap": message.gap is not None,
                }
            )
            return
        time = "" if message.sent_at is None else f"{message.sent_at:%H:%M:%S}.{message.sent_at.microsecond // 1000:03d}"
        data = json.dumps(message.data, ensure_ascii=False)
        words = [paint(time, "faint"), paint(printable(message.topic or ""), "cyan"), printable(message.type)]
        say("  ".join([*words, paint(printable(message.sender), "faint"), printable(data)]))

    def _gap(self, gap: Gap) -> None:
        if self._is_lost:
            self._gaps.append(gap)
        else:
            complain(str(gap))

    def _presence(self, news: Presence) -> None:
        if self._is_json:
            say_json_line({"presence": news.event, "topic": news.topic, "actors": list(news.actors)})
            return
        verb = {"join": "joined", "leave": "left"}.get(news.event)
        actors = " ".join(map(printable, news.actors))
        say(paint(f"{actors} {verb} {news.topic}" if verb else f"{news.topic}: {actors or 'nobody'}", "yellow"))

    def _sum_up(self) -> None:
        text = f"{count(self._done, 'message')} in {span((monotonic() - self._began) / SECOND)}"
        if self._last is not None and self._can_go_on:
            text += f"; to go on from here: --since {self._last.epoch}:{self._last.offset}"
        complain(text)


async def _has_history(hub: HubClient, messages: HubMessages) -> bool:
    """Whether somebody may come back later and have what was missed."""
    pattern = messages.pattern or ""
    if "+" in pattern or "#" in pattern:
        return messages.position is not None  # the hub knows one history of all of it
    return (await hub.topic_info(pattern)).has_history
