"""The tokens of a .proto definition: names, numbers, strings and signs, each with its place. Comments are skipped."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from penstock.errors import InvalidArgument
from penstock.schemas.schema import shortened

# No two alternatives can match the same text, so the time is linear in the length of the definition.
_WORD = re.compile(
    r"""(?P<space>[ \t\r\n\f\v]+ | //[^\n]* | /\*(?:[^*]|\*(?!/))*\*/)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>\.?[0-9](?:[eE][+-]|[A-Za-z0-9_.])*)
      | (?P<string>"(?:[^"\\\n\0]|\\[^\n\0])*" | '(?:[^'\\\n\0]|\\[^\n\0])*')
      | (?P<sign>[;={}\[\]()<>,.+:/-])""",
    re.VERBOSE | re.ASCII,
)
_INTEGER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,22}|[1-9][0-9]{0,19}", re.ASCII)
_FLOAT = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?", re.ASCII)


class ProtoToken(NamedTuple):
    """A token: its kind (name, number, string, sign, end), its text, and where it starts."""

    kind: str
    text: str
    at: int


class ProtoTokens:
    """The tokens of one definition, in order."""

    def __init__(self, definition: str) -> None:
        self._definition = definition
        self._words = self._split()
        self._next = 0

    def _split(self) -> list[ProtoToken]:
        words: list[ProtoToken] = []
        at, end = 0, len(self._definition)
        while at < end:
            match = _WORD.match(self._definition, at)
            if match is None:
                self.refuse(
                    f"found {shortened(self._definition[at : at + 10])}, expected a name, a number, a string or a sign", at
                )
            if match.lastgroup != "space":
                words.append(ProtoToken(match.lastgroup or "", match[0], at))
            at = match.end()
        words.append(ProtoToken("end", "the end", end))
        return words

    @property
    def here(self) -> ProtoToken:
        return self._words[self._next]

    @property
    def after(self) -> ProtoToken:
        """The token after the next."""
        return self._words[min(self._next + 1, len(self._words) - 1)]

    def take(self) -> ProtoToken:
        word = self._words[self._next]
        if word.kind != "end":
            self._next += 1
        return word

    def take_if(self, text: str) -> bool:
        """Whether the next token is this name or sign; it is consumed if so."""
        is_it = self.here.text == text and self.here.kind in {"name", "sign"}
        if is_it:
            self._next += 1
        return is_it

    def expect(self, text: str) -> ProtoToken:
        if self.here.text != text or self.here.kind not in {"name", "sign"}:
            self.unexpected(repr(text))
        return self.take()

    def name(self, what: str) -> ProtoToken:
        if self.here.kind != "name":
            self.unexpected(what)
        return self.take()

    def path(self, what: str) -> str:
        """Take names joined by dots; a leading dot is kept."""
        parts = ["." if self.take_if(".") else "", self.name(what).text]
        while self.take_if("."):
            parts += [".", self.name(what).text]
        return "".join(parts)

    def integer(self, what: str, least: int, most: int) -> int:
        """Take an integer of a range, with its sign if there is one."""
        at = self.here.at
        sign = -1 if self.take_if("-") else 1
        text = self.here.text
        if self.here.kind != "number" or not _INTEGER.fullmatch(text):
            self.unexpected(what)
        self.take()
        value = sign * int(text, 8 if text.isdigit() and text[0] == "0" else 0)
        if not least <= value <= most:
            self.refuse(f"found {value}, expected {what} from {least} to {most}", at)
        return value

    def string(self, what: str) -> str:
        """Parse a string; adjacent strings are one. Escapes are kept as written: no option that we use has any."""
        if self.here.kind != "string":
            self.unexpected(what)
        parts = []
        while self.here.kind == "string":
            parts.append(self.take().text[1:-1])
        return "".join(parts)

    def constant(self) -> None:
        """Skip the value of an option: a name, a number, a string or text in braces."""
        if self.here.text == "{" and self.here.kind == "sign":
            self._braces()
        elif self.here.kind == "string":
            self.string("a value")
        elif self.here.kind == "name":
            self.path("a value")
        else:
            if self.here.text in {"-", "+"}:
                self.take()
            is_number = self.here.kind == "number" and (_INTEGER.fullmatch(self.here.text) or _FLOAT.fullmatch(self.here.text))
            if not is_number and self.here.text not in {"inf", "nan"}:
                self.unexpected("a value")
            self.take()

    def _braces(self) -> None:
        opening = self.here.at
        depth = 0
        while True:
            word = self.take()
            if word.kind == "end":
                self.refuse("this '{' is not closed", opening)
            if word.kind == "sign":
                depth += (word.text == "{") - (word.text == "}")
            if depth == 0:
                return

    def unexpected(self, wanted: str) -> NoReturn:
        """Refuse the next token."""
        text = self.here.text if self.here.kind == "end" else shortened(self.here.text)
        self.refuse(f"found {text}, expected {wanted}", self.here.at)

    def refuse(self, reason: str, at: int) -> NoReturn:
        """Raise InvalidArgument with the line and column of a place."""
        line = self._definition.count("\n", 0, at) + 1
        column = at - self._definition.rfind("\n", 0, at)
        raise InvalidArgument(f"Protocol Buffer schema, line {line}, column {column}: {reason}")
