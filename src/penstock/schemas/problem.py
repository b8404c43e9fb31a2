"""What is wrong with a message, and where in it: raised at the spot, given its path on the way out."""

from __future__ import annotations

from penstock.errors import InvalidArgument

SHOWN = 60  # characters of a value that an error shows


class Problem(Exception):
    """Something in a message is not what the schema wants. Each container it passes adds its step to the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self._steps: list[str] = []

    def inside(self, step: str | int) -> Problem:
        """The same problem, seen from the container: `step` is a field's name, a map's key or an item's index."""
        self._steps.append(f"[{step}]" if isinstance(step, int) else f".{step[:SHOWN]}")
        return self

    def where(self) -> str:
        """The path as the start of a sentence; nothing for the message itself."""
        path = "".join(reversed(self._steps)).removeprefix(".")
        if len(path) > 4 * SHOWN:
            path = f"{path[: 2 * SHOWN]}...{path[-2 * SHOWN :]}"
        return f"at {path}: " if path else ""

    def as_invalid_argument(self) -> InvalidArgument:
        """What the caller is told of a message."""
        return InvalidArgument(f"message does not match its schema: {self.where()}{self.reason}")


def found(value: object) -> str:
    """A decoded JSON value in a few words, however large it is."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the string {shortened(value)}"
        case list():
            return f"an array of {len(value)}"
        case dict():
            return f"an object of {len(value)}"
    text = str(value)
    return f"the number {text}" if len(text) <= SHOWN else f"a number of {len(text)} digits"


def shortened(text: str) -> str:
    """A text in quotes, cut to what fits in a line."""
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}..."
