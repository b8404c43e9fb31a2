"""A terminal that a program has for itself for a while: drawn without flicker, left as it was found."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

_ENTER = "\x1b[?1049h\x1b[?25l"  # the other screen, no cursor
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
    """The keys that were pressed: a letter, or the name of a key that has none. What is unknown is left out."""
    found = (_NAMES.get(one) or (one.decode() if one.isalnum() else None) for one in _KEY.findall(data))
    return [key for key in found if key is not None]


class Screen:
    """The terminal of the standard output, with the keys of the standard input. Use it with `with`, in an event loop."""

    def __init__(self) -> None:
        self._keys: asyncio.Queue[str | None] = asyncio.Queue()
        """What was pressed; None: draw again."""
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
        """Show these lines. Each replaces the one that was there, so nothing is empty in between."""
        text = _HOME + "\n".join(f"{line}{_END_OF_LINE}" for line in lines) + _BELOW
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()

    def redraw(self) -> None:
        """Have whoever waits for a key draw again."""
        self._keys.put_nowait(None)

    async def key(self, seconds: float) -> str | None:
        """The next key; None when it is time to draw again."""
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
        """Ctrl-Z: give the terminal back, stop, and take it again when somebody lets us go on."""
        self._hide()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._show()
        self.redraw()

    def _read(self) -> None:
        assert self._input is not None, "there is a reader"
        data = os.read(self._input, _READ)
        if not data:  # the terminal went away
            asyncio.get_running_loop().remove_reader(self._input)
            self._keys.put_nowait("q")
        for key in keys_of(data):
            self._keys.put_nowait(key)
