"""`penstock hub …`: listen to topics, publish to them, list topics and actors, and make tokens (JWT) for actors."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.cli.arguments import duration, whole
from penstock.cli.command import Parser, Verbs
from penstock.cli.input import lines
from penstock.cli.output import complain, paint, say, say_json, say_json_line, table, when
from penstock.cli.session import DEFAULT_SERVER, TOKEN_VARIABLE, Target, add_ca, add_server, describe, server_of, within
from penstock.cli.settings import add_flags, settings_of
from penstock.clock import SystemClock, monotonic
from penstock.durations import SECOND
from penstock.errors import InvalidArgument, PenstockError, Unauthenticated, Unavailable
from penstock.hub.core.identity import TokenRequirements, identity_of, parse_claims
from penstock.hub.core.refusal import Refusal
from penstock.hub.keys import KeyFile, secret_key
from penstock.values.wording import count, printable, span

if TYPE_CHECKING:
    from penstock.client import Position
    from penstock.hub.client.client import HubClient
    from penstock.hub.client.core.subscription import Gap
    from penstock.hub.client.messages import ConnectionNews, HubActor, HubMessage, HubMessages, HubTopic, Key, Presence


STDIN = "-"
PAGE = 1_000
LOOK_SECONDS = 0.1
"""How often to check for a subscriber."""


def configure(parser: Parser) -> None:
    verbs = Verbs(parser)
    _add_listen(verbs)
    publish = verbs.add("publish", "publish messages to a topic, and say how many subscribers they reached", run_publish)
    publish.add_argument("topic", metavar="TOPIC")
    publish.add_argument(
        "data",
        metavar="DATA",
        nargs="+",
        help=f"a message each: JSON, or text; {STDIN} reads the standard input, a message a line",
    )
    publish.add_argument("--type", default="message", metavar="TYPE", help="the type of the message (default: message)")
    publish.add_argument("--ttl", type=duration, metavar="DURATION", help="how long it is valid (default: always)")
    publish.add_argument("--wait", type=duration, metavar="DURATION", help="wait up to DURATION for a first subscriber")
    topics = verbs.add("topics", "list the topics and patterns that have subscribers", run_topics)
    topics.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only those with this prefix")
    actors = verbs.add("actors", "list the registered actors", run_actors)
    actors.add_argument(
        "--capability", action="append", default=[], metavar="WORD", help="only those with this capability; can be repeated"
    )
    info = verbs.add("info", "show the details of a topic", run_info)
    info.add_argument("topic", metavar="TOPIC")
    for child in (publish, topics, actors, info):
        child.add_argument("--json", action="store_true", help="print JSON, for programs")
        add_hub(child)
    _add_token(verbs)


def run_publish(found: argparse.Namespace) -> int:
    """Publish each message after the previous one is confirmed, so that they keep their order."""
    if STDIN in found.data and len(found.data) > 1:
        raise InvalidArgument(
            f"{STDIN} is given together with other DATA, expected one or the other",
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
                    complain("this looks like JSON but is not valid, so it is sent as text: " + printable(text[:60]))
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
    """The data of a message: the value of a JSON text, or the text itself if it is not JSON."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_number)
    except (ValueError, RecursionError):
        return text


def run_topics(found: argparse.Namespace) -> int:
    """Print a table sorted by name."""

    async def work(hub: HubClient) -> int:
        rows: list[HubTopic] = []
        while page := await hub.topics(found.prefix, limit=PAGE, offset=len(rows)):
            rows += page
            if len(page) < PAGE:
                break
        if found.json:
            say_json(rows)
        elif not rows:
            complain("no topic has subscribers" + (f" that begins with {found.prefix}" if found.prefix else ""))
        else:
            say(table([["TOPIC", "SUBSCRIBERS"], *([one.name, f"{one.subscriber_count:,}"] for one in rows)]))
        return 0

    return run_with_hub(found, work)


def run_actors(found: argparse.Namespace) -> int:
    """Print a table sorted by address, without this client."""

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
            complain("no actors are registered")
        else:
            shown = ([one.address, ",".join(one.capabilities), when(one.registered_at)] for one in rows)
            say(table([["ADDRESS", "CAPABILITIES", "SINCE"], *shown]))
        return 0

    return run_with_hub(found, work)


def run_info(found: argparse.Namespace) -> int:
    """Show the details of a topic."""

    async def work(hub: HubClient) -> int:
        info = await hub.topic_info(found.topic)
        place = None if info.position is None else f"{info.position.epoch}:{info.position.offset}"
        values = {
            "topic": info.name,
            "subscribers": info.subscriber_count,
            "by exactly this name": info.exact_count,
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
    """Return once a topic has a subscriber."""
    try:
        async with asyncio.timeout(seconds):
            while not (await hub.topic_info(topic)).subscriber_count:  # noqa: ASYNC110  # no event reports it
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise Unavailable(
            f"no client subscribed to {topic} in {seconds:g} s; nothing was published",
            hint="subscribe first, as `penstock hub listen` does, wait longer, or leave --wait out",
        ) from None


def _no_number(word: str) -> object:
    raise ValueError(word)


def _number(word: str) -> float:
    """A number, unless it is out of range: it would become infinite, and then null."""
    value = float(word)
    if not isfinite(value):
        raise ValueError(word)
    return value


MAKERS = "`penstock hub token` makes a JWT, `penstock token create` a token of the server"
"""Only the operator of the server knows which of them it accepts."""
Work = Callable[["HubClient"], Awaitable[int]]
"""The work of a command with an open client; returns the exit code."""


def add_hub(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the hub's address and the caller's token."""
    group = parser.add_argument_group("which hub")
    add_server(group.add_mutually_exclusive_group())
    add_ca(group)
    group.add_argument(
        "--as",
        dest="address",
        metavar="ADDRESS",
        help="the address to connect as, such as '@(browser/ui)' (default: a generated one)",
    )
    token = group.add_mutually_exclusive_group()
    token.add_argument(
        "--token", help=f"the caller's token, if the hub requires one; other users see flags, so prefer {TOKEN_VARIABLE}"
    )
    token.add_argument("--token-file", metavar="FILE", help="a file with the token")


def run_with_hub(found: argparse.Namespace, work: Work, **options: Any) -> int:
    """Run a command's work with a connected client; returns the exit code. `options` are the client's own."""
    target = server_of(found, os.environ) or Target(DEFAULT_SERVER, token=os.environ.get(TOKEN_VARIABLE))
    token = target.token if found.token_file is None else _token_in(found.token_file)

    def make() -> HubClient:
        from penstock.hub.client.client import HubClient  # noqa: PLC0415  # `--help` and a wrong call need no client

        given = {"address": found.address, "token": token, "tls": target.tls(), "capabilities": ("penstock-cli",)}
        return HubClient(str(target.server), **given, **options)

    with _told_here():
        try:
            return asyncio.run(within(make, work))
        except Unauthenticated as error:
            error.hint = f"give one with --token-file, or set {TOKEN_VARIABLE}; {MAKERS}"
            raise


def _token_in(file: str) -> str:
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise InvalidArgument.of("--token-file", file, "a file that can be read") from None
    if not text or "\n" in text:
        raise InvalidArgument(f"--token-file {file} holds no token, expected one line", hint=MAKERS)
    return text


@contextmanager
def _told_here() -> Iterator[None]:
    """Silence the client's logs about its connection and gaps: commands print messages of their own."""
    log = logging.getLogger("penstock.client")

    def is_news(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    log.addFilter(is_news)
    try:
        yield
    finally:
        log.removeFilter(is_news)


T = TypeVar("T")
MAX_SHOWN = 10_000
"""How many shown messages are remembered, to skip those that several patterns deliver."""


def _add_listen(verbs: Verbs) -> None:
    """Add `listen`."""
    listen = verbs.add("listen", "show the messages of topics as they arrive", run_listen)
    listen.add_argument(
        "patterns", metavar="PATTERN", nargs="+", help="a topic, or a pattern such as 'orders/#' or 'orders/+/new'"
    )
    listen.add_argument("--count", type=whole(1), metavar="N", help="stop after N messages (default: at Ctrl-C)")
    listen.add_argument(
        "--since", type=position, metavar="EPOCH:OFFSET", help="start after that position, for a topic with history"
    )
    listen.add_argument(
        "--durable",
        action="store_true",
        help="also receive messages from while it was disconnected; needs --as, and acks what was shown",
    )
    listen.add_argument(
        "--presence", action="store_true", help="show the other subscribers: those present, and who joins and leaves"
    )
    listen.add_argument(
        "--json", action="store_true", help="a JSON document on each line (default: if the output is not a terminal)"
    )
    add_hub(listen)


def position(text: str) -> tuple[str, int]:
    """(epoch, offset) of `EPOCH:OFFSET`."""
    epoch, colon, offset = text.rpartition(":")
    if not colon or not epoch or not offset.isascii() or not offset.isdecimal() or len(offset) > 15:
        raise argparse.ArgumentTypeError(f"{text!r} is not EPOCH:OFFSET, as `penstock hub listen` shows it when it ends")
    return epoch, int(offset)


def run_listen(found: argparse.Namespace) -> int:
    """Show messages until the limit is reached."""
    if found.durable and found.address is None:
        raise InvalidArgument(
            "--durable is given without --as", hint="durable messages wait for an address: name it, as in --as '@(shop/billing)'"
        )
    if found.durable and found.since is not None:
        raise InvalidArgument(
            "--durable and --since are given together, expected one or the other",
            hint="a durable subscription keeps its own position: leave --since out",
        )
    if found.since is not None and len(found.patterns) > 1:
        raise InvalidArgument("--since is given with several patterns, expected one", hint="a position belongs to one of them")
    listener = _Listener(found)
    return run_with_hub(found, listener.listen, on_connection=listener.connection)


class _Listener:
    """Shows messages and news."""

    def __init__(self, found: argparse.Namespace) -> None:
        self._found = found
        self._is_json = found.json or not sys.stdout.isatty()
        self._done = 0
        self._last: Position | None = None
        self._began = monotonic()
        self._is_lost = False
        self._gaps: list[Gap] = []
        """Sent as soon as there is a connection."""
        self._shown: OrderedDict[Key, None] = OrderedDict()
        self._can_go_on = False
        self._unheard: OSError | None = None
        """The error of writing to a closed pipe."""
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
                    await (
                        hub.close()
                    )  # its subscriptions end with it: do not end them one by one, in case the server does not answer
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
        """Show the messages of all patterns, until the limit is reached."""
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
        """End it if the output is closed."""
        await self._is_over.wait()
        if self._unheard is not None:
            raise self._unheard

    async def _follow(self, messages: HubMessages) -> None:
        async for message in messages:
            if self._done == self._found.count:
                return  # another pattern delivered the last one
            if not self._is_shown(message):
                self._message(message)
                # Only after printing: a message that was not shown must be redelivered.
                self._done += 1
                self._last = message.position or self._last
            if self._found.durable:
                with suppress(Unavailable):  # the client logs it again when the message is redelivered
                    await message.ack()
            if self._done == self._found.count:
                return

    def _is_shown(self, message: HubMessage) -> bool:
        """Whether another pattern delivered it before."""
        if len(self._found.patterns) == 1:
            return False
        if message.key in self._shown:
            return True
        self._shown[message.key] = None
        if len(self._shown) > MAX_SHOWN:
            self._shown.popitem(last=False)
        return False

    def _tell(self, tell: Callable[[T], None]) -> Callable[[T], None]:
        """The callback for news: without it the client would only log them."""

        def told(news: T) -> None:
            try:
                tell(news)
            except OSError as error:
                self._unheard = error
                self._is_over.set()

        return told

    def connection(self, news: ConnectionNews) -> None:
        """A connection was lost, or restored."""
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
            text += f"; to continue from here: --since {self._last.epoch}:{self._last.offset}"
        complain(text)


async def _has_history(hub: HubClient, messages: HubMessages) -> bool:
    """Whether the topic has a history from which a listener can continue later."""
    pattern = messages.pattern or ""
    if "+" in pattern or "#" in pattern:
        return messages.position is not None  # the hub has one history of all of it
    return (await hub.topic_info(pattern)).has_history


_JWT_PREFIX = "hub_jwt_"
HOUR = 3_600.0
ACTOR_HINT = "an actor is a kind and a name, such as browser/ui; patterns are such as chat/# or orders/+"


def _add_token(verbs: Verbs) -> None:
    """Add `token`."""
    token = verbs.add("token", "create a token for an actor, signed with the secret of the hub", run_token)
    token.add_argument("--actor", required=True, metavar="KIND/NAME", help="the actor of the token, such as browser/ui")
    token.add_argument(
        "--publish",
        action="append",
        metavar="PATTERN",
        help="a pattern of topics that it may publish to; can be repeated (default: all)",
    )
    token.add_argument(
        "--subscribe",
        action="append",
        metavar="PATTERN",
        help="a pattern of topics that it may subscribe to; can be repeated (default: all)",
    )
    token.add_argument("--ttl", type=duration, default=HOUR, metavar="DURATION", help="how long it is valid (default: 1h)")
    add_flags(token, {"hub_jwt_secret_file", "hub_jwt_issuer", "hub_jwt_audience"}, prefix=_JWT_PREFIX)


def run_token(found: argparse.Namespace) -> int:
    """Print only the token, for scripts. A hub with the same settings accepts it."""
    settings, _ = settings_of(found, prefix=_JWT_PREFIX)
    if settings.hub_jwt_secret_file is None:
        raise InvalidArgument(
            "there is no secret to sign with",
            hint="name its file with --secret-file, or set hub_jwt_secret_file as for the server",
        )
    if not SECOND <= found.ttl * SECOND <= settings.hub_jwt_max_age * SECOND:
        raise InvalidArgument.of(
            "--ttl", f"{found.ttl:g} s", f"1 s or more, and no more than hub_jwt_max_age ({settings.hub_jwt_max_age:g} s)"
        )
    now = SystemClock().now()
    issued = now // SECOND
    claims: dict[str, object] = {
        "iss": settings.hub_jwt_issuer,
        "aud": settings.hub_jwt_audience,
        "actorId": found.actor,
        "publish": found.publish,
        "subscribe": found.subscribe,
        "iat": issued,
        "exp": issued + round(found.ttl),
    }
    key = KeyFile(settings.hub_jwt_secret_file, "HS256", secret_key, lambda: 0).key
    token = key.signed({name: value for name, value in claims.items() if value is not None})
    try:
        demands = TokenRequirements(issuer=settings.hub_jwt_issuer, audience=settings.hub_jwt_audience)
        actor = identity_of(parse_claims(key.opened(token) or b""), demands, now).address
    except Refusal as refusal:
        raise InvalidArgument(f"a hub would refuse this token: {refusal.message}", hint=ACTOR_HINT) from None
    say(token)
    complain(f"valid for {span(found.ttl)}, as {actor}; send it as payload.jwt of hub:connect, or set PENSTOCK_TOKEN to it")
    return 0
