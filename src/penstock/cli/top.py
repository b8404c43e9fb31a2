"""`penstock top`: the traffic of a broker, live."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.cli.arguments import duration
from penstock.cli.command import Parser
from penstock.cli.output import has_colours, say, say_json_line
from penstock.cli.session import add_target
from penstock.cli.session import run as run_with_client
from penstock.cli.top_view import GAP, Sample, Sort, body, frame, ordered, sample, totals
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import InvalidArgument, Unavailable
from penstock.values.wording import printable, span

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub
    from penstock.wire.results import Overview, ServerInfo


SHORTEST, LONGEST = 0.1, 3_600
PAGE = 10
SORTS = {str(sort)[0]: sort for sort in Sort}
KEYS = "q quit  " + "  ".join(f"{key} {sort}" for key, sort in SORTS.items()) + "  p pause  ↑↓ scroll"
TITLES = ("SUBSCRIPTION ", "QUEUE ", "TOPIC ")
UNLIMITED = 10_000


def configure(parser: Parser) -> None:
    """Add the flags for interval and form."""
    parser.add_argument("--interval", type=duration, metavar="DURATION", default=1.0, help="how often to update (default: 1s)")
    parser.add_argument("--once", action="store_true", help="measure one interval, print it, and end")
    parser.add_argument(
        "--sort", choices=[*map(str, Sort)], default=str(Sort.BACKLOG), help="the order of rows (default: backlog)"
    )
    add_target(parser)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Show the screen, or print lines."""
    if not SHORTEST <= found.interval <= LONGEST:
        raise InvalidArgument.of("--interval", found.interval, f"a duration from {SHORTEST} to {LONGEST} s")
    if not found.once and not found.json and not sys.stdout.isatty():
        raise InvalidArgument("top needs a terminal", hint="--once prints one table, --json a line each time")
    work = _print if found.once or found.json else _show
    return run_with_client(found, lambda pubsub: work(pubsub, found))


async def _print(pubsub: PubSub, found: argparse.Namespace) -> int:
    """Print one table, or a JSON line for each interval."""
    async for info, seen in _samples(pubsub, found.interval):
        shown = ordered(seen, Sort(found.sort))
        if found.json:
            document = {"topics": shown.sources, "subscriptions": shown.of("subscription"), "queues": shown.of("queue")}
            say_json_line({"at": seen.at, "server": info, **document})
        else:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED
            say("\n".join([title(pubsub.link.address, info), totals(shown, width), "", *body(shown, width)]))
        if found.once:
            break
    return 0


async def _samples(pubsub: PubSub, interval: float) -> AsyncIterator[tuple[ServerInfo, Sample]]:
    """The numbers of each interval."""
    before = await pubsub.overview()
    while True:
        await asyncio.sleep(interval)
        info, after = await asyncio.gather(pubsub.info(), pubsub.overview())
        yield info, sample(before, after)
        before = after


def title(address: str, info: ServerInfo | None, *states: str, is_silent: bool = False) -> str:
    """The server and its health; the most important first, because a narrow screen cuts off the rest."""
    if info is None:
        return GAP.join(["penstock", *states, printable(address)])
    kept = "on disk" if info.is_durable else "in memory"
    if info.started is not None:
        kept += f"{GAP}up {span(round((info.now - info.started).total_seconds()))}"
    health = "healthy" if info.problem is None else f"CANNOT WRITE: {printable(info.problem)}"
    return GAP.join([f"penstock {info.version}", *([] if is_silent else [health]), *states, printable(address), kept])


class _Board:
    """The current numbers, and how to show them."""

    def __init__(self, pubsub: PubSub, found: argparse.Namespace) -> None:
        self._pubsub = pubsub
        self._interval: float = found.interval
        self._sort = Sort(found.sort)
        self._top = 0
        self._is_paused = False
        self._last: Overview | None = None
        self._seen: Sample | None = None
        self._info: ServerInfo | None = None
        self._heard = monotonic()
        self._problem: str | None = None

    async def follow(self, screen: Screen) -> None:
        """Poll forever. A server that does not answer may come back, so that does not end it."""
        while True:
            try:
                self._info, overview = await asyncio.gather(self._pubsub.info(), self._pubsub.overview())
            except Unavailable as error:
                self._problem = str(error)
            else:
                seen, self._last = sample(self._last, overview), overview
                self._heard, self._problem = monotonic(), None
                if not self._is_paused:
                    self._seen = seen
            screen.redraw()
            await asyncio.sleep(self._interval)

    def press(self, key: str, height: int) -> None:
        """Handle a key that changes the view."""
        page = max(height - PAGE // 2, 1)
        steps = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -self._top, "end": 10**6}
        if key in SORTS:
            self._sort = SORTS[key]
        elif key == "p":
            self._is_paused = not self._is_paused
        else:
            self._top += steps.get(key, 0)

    def lines(self, size: tuple[int, int]) -> list[str]:
        """The lines of the screen."""
        silence = (monotonic() - self._heard) / SECOND
        is_silent = self._problem is not None or silence > 2 * self._interval + 1
        states = ["PAUSED"] if self._is_paused else []
        if is_silent:
            states.append(f"NO ANSWER for {span(round(silence))}" + (f": {printable(self._problem)}" if self._problem else ""))
        elif self._seen is not None:
            states.append(f"{self._seen.at:%H:%M:%S} UTC")
        heading = [title(self._pubsub.link.address, self._info, *states, f"by {self._sort}", is_silent=is_silent)]
        content = ["…"]
        if self._seen is not None:
            shown = ordered(self._seen, self._sort)
            heading.append(totals(shown, size[0]))
            content = body(shown, size[0])
        screen, self._top = frame(heading, content, KEYS, size, self._top)
        return _styled(screen, size[0]) if has_colours() else screen


def _styled(lines: list[str], width: int) -> list[str]:
    """The first line reversed, titles bold, the last line faint."""
    styles = ["1" if line.startswith(TITLES) else "" for line in lines]
    if len(lines) > 1:
        styles[0], styles[-1] = "7", "2"
    lines = [lines[0].ljust(width), *lines[1:]]
    return [f"\x1b[{style}m{line}\x1b[0m" if style else line for line, style in zip(lines, styles, strict=True)]


async def _show(pubsub: PubSub, found: argparse.Namespace) -> int:
    """Show the screen until the user quits."""
    with Screen() as screen:
        board = _Board(pubsub, found)
        follower = asyncio.ensure_future(board.follow(screen))
        try:
            while (key := await screen.key(found.interval)) != "q":
                if follower.done():
                    follower.result()  # it ends only with an error
                if key is not None:
                    board.press(key, screen.size[1])
                screen.draw(board.lines(screen.size))
        finally:
            follower.cancel()
    return 0


_ENTER = "\x1b[?1049h\x1b[?25l"  # the alternate screen, no cursor
_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_READ = 256
_KEY = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|\x1b|[\x20-\x7e\r]")
_NAMES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"k": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"j": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b" ": "page down",
    b"\x1b[H": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1b[4~": "end",
}


def keys_of(data: bytes) -> list[str]:
    """The pressed keys: a letter, or the name of a special key. Unknown ones are ignored."""
    found = (_NAMES.get(one) or (one.decode() if one.isalnum() else None) for one in _KEY.findall(data))
    return [key for key in found if key is not None]


class Screen:
    """The terminal of the standard output, with the keys of the standard input. Use it with `with`, in an event loop."""

    def __init__(self) -> None:
        self._keys: asyncio.Queue[str | None] = asyncio.Queue()
        """The pressed key; None: redraw."""
        self._input = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._settings: list[Any] | None = None  # Any: termios says what is in it
        self._is_shown = False

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._show()
        loop.add_signal_handler(signal.SIGWINCH, self.redraw)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        if self._input is not None:
            loop.add_reader(self._input, self._read)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        loop = asyncio.get_running_loop()
        if self._input is not None:
            loop.remove_reader(self._input)
        loop.remove_signal_handler(signal.SIGTSTP)
        loop.remove_signal_handler(signal.SIGWINCH)
        self._hide()

    @property
    def size(self) -> tuple[int, int]:
        """(columns, lines)."""
        try:
            columns, lines = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            columns, lines = 0, 0
        return columns or 80, lines or 24

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines. Each replaces the previous one, so the screen never flickers."""
        text = _HOME + "\n".join(f"{line}{_END_OF_LINE}" for line in lines) + _BELOW
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()

    def redraw(self) -> None:
        """Have the waiting thread redraw."""
        self._keys.put_nowait(None)

    async def key(self, seconds: float) -> str | None:
        """The next key; None to redraw."""
        try:
            async with asyncio.timeout(seconds):
                return await self._keys.get()
        except TimeoutError:
            return None

    def _show(self) -> None:
        if self._input is not None:
            self._settings = termios.tcgetattr(self._input)
            tty.setcbreak(self._input, termios.TCSANOW)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        self._is_shown = True

    def _hide(self) -> None:
        if not self._is_shown:
            return
        self._is_shown = False
        if self._input is not None and self._settings is not None:
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._settings)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()

    def _suspend(self) -> None:
        """Ctrl-Z: restore the terminal, stop, and take it again when continued."""
        self._hide()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._show()
        self.redraw()

    def _read(self) -> None:
        assert self._input is not None, "there is a reader"
        data = os.read(self._input, _READ)
        if not data:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(self._input)
            self._keys.put_nowait("q")
        for key in keys_of(data):
            self._keys.put_nowait(key)
