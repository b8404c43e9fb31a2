r"""Subscription filters: which messages a subscription gets, by their attributes, in the language of Google Pub/Sub.

    expr      :=  and_list | or_list | unary                AND and OR mix only with parentheses
    and_list  :=  unary ("AND" unary)+
    or_list   :=  unary ("OR" unary)+
    unary     :=  ("NOT" | "-") unary  |  "(" expr ")"  |  cond
    cond      :=  "attributes" ":" key                                        the message has the key
               |  "attributes" "." key "=" string                             it has the key, with this value
               |  "attributes" "." key "!=" string                            it has another value, or lacks the key
               |  "hasPrefix" "(" "attributes" "." key "," string ")"         it has the key, with a value that starts so
    key       :=  [A-Za-z0-9_-]+ | string
    string    :=  '"' any characters, with \" for a quote and \\ for a backslash '"'

Words are case-sensitive, white space between tokens is free, a blank filter matches every message. A filter has at most 256
bytes of UTF-8 and nests at most 32 parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.errors import InvalidArgument, InvalidFilter

MAX_BYTES = 256
MAX_DEPTH = 32

_Test = Callable[[Mapping[str, str]], bool]


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter. Filters with the same text are equal."""

    text: str
    _test: _Test = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InvalidArgument.of("filter", self.text, "a string")
        object.__setattr__(self, "_test", _Parser(self.text).parse())

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Parse a filter; InvalidFilter names the position and the remedy."""
        return cls(text)

    def matches(self, attributes: Mapping[str, str]) -> bool:
        """Whether a message with these attributes matches."""
        return self._test(attributes)

    def __reduce__(self) -> tuple[type[Filter], tuple[str]]:
        # Closures cannot be pickled; the text is enough to build them again.
        return type(self), (self.text,)


# One token as a reader sees it, for keywords and for error messages. Keys and strings have patterns of their own, because a "-"
# that starts a key is a negation anywhere else.
_TOKEN = re.compile(r""" "(?:[^"\\]|\\.)*"? | '[^']*'? | \w+ | [=!<>]+ | &+ | \|+ | \S """, re.VERBOSE | re.DOTALL)
_KEY = re.compile(r"[A-Za-z0-9_-]*")
_KEY_AS_MEANT = re.compile(r"""[^\s()=!<>:,"'&|]*""")
_STRING_AS_MEANT = re.compile(r"""[^\s()"'&|]*""")
_STRING = re.compile(r'"((?:[^"\\]|\\["\\])*)("?)')
_ESCAPE = re.compile(r"\\(.)")

_QUOTES = frozenset("'`\u00b4\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb")

_CONDITION = 'a condition, such as `attributes:key` or `attributes.key = "value"`'
_STRAIGHT = 'put it in straight double quotes, `"`'
_COMPARE = 'to compare the value, write `attributes.key = "value"`'
_JOIN = "join two conditions with `AND` or `OR`"
_ALONE = "to test only for the key, write `attributes:key`"

# What to do about a token in the place of a condition, of AND or OR, and of = or !=.
_INSTEAD_OF_CONDITION = {
    "not": "write `NOT` in capitals",
    "!": "write `NOT`",
    "and": "`AND` stands between two conditions",
    "or": "`OR` stands between two conditions",
    "attr": "write `attributes` in full",
    "attribute": "write `attributes`, with an s",
    "attributes": "write `attributes` in lower case",
    "hasprefix": "write `hasPrefix`, with a capital P only",
}
_INSTEAD_OF_JOINT = {
    "and": "write `AND` in capitals",
    "or": "write `OR` in capitals",
    "&": "write `AND`",
    "&&": "write `AND`",
    "|": "write `OR`",
    "||": "write `OR`",
    "=": _COMPARE,
    "==": _COMPARE,
    "!=": _COMPARE,
    ")": "no parenthesis is open here: remove this one, or add its `(`",
    "attributes": _JOIN,
    "hasprefix": _JOIN,
    "not": _JOIN,
    "-": _JOIN,
    "(": _JOIN,
}
_INSTEAD_OF_COMPARISON = {
    "==": "write a single `=`",
    "<>": "write `!=`",
    ":": _ALONE,
    "": _ALONE,
}


class _Parser:
    """Recursive descent that builds the test directly: `at` is the start of the next token, `token` its text, "" at the end."""

    def __init__(self, text: str) -> None:
        _check_size(text)
        self.text = text
        self.move(0)

    def parse(self) -> _Test:
        if not self.token:
            return lambda _: True
        test = self.expression(0)
        if self.token:
            raise self.error("`AND`, `OR` or the end", _INSTEAD_OF_JOINT.get(self.token.lower()))
        return test

    def expression(self, depth: int) -> _Test:
        tests = [self.unary(depth)]
        joint = self.token
        while self.token in ("AND", "OR"):
            if self.token != joint:
                raise self.error(f"`{joint}` again", "add parentheses, as in `(a AND b) OR c`")
            self.skip()
            tests.append(self.unary(depth))
        if len(tests) == 1:
            return tests[0]
        return _all(tuple(tests)) if joint == "AND" else _any(tuple(tests))

    def unary(self, depth: int) -> _Test:
        # A loop, not recursion, so that a row of negations costs no stack here and at most one call in a match.
        negated = False
        while self.token in ("NOT", "-"):
            negated = not negated
            self.skip()
        test = self.group(depth + 1) if self.token == "(" else self.condition()
        return _not(test) if negated else test

    def group(self, depth: int) -> _Test:
        if depth > MAX_DEPTH:
            raise self.error(f"at most {MAX_DEPTH} open at a time", "remove the parentheses that are not needed")
        opened = self.at
        self.skip()
        test = self.expression(depth)
        self.close(opened, "`AND`, `OR` or `)`", _INSTEAD_OF_JOINT.get(self.token.lower()))
        return test

    def condition(self) -> _Test:
        if self.token == "hasPrefix":
            return self.prefix()
        if self.token != "attributes":
            raise self.error(_CONDITION, self.condition_remedy())
        self.skip()
        if self.token == ":":
            self.skip()
            return _has(self.key())
        self.expect(".", "`:` or `.`", "write `attributes:key` or `attributes.key`")
        key = self.key()
        operator = self.token
        if operator not in ("=", "!="):
            raise self.error("`=` or `!=`", _INSTEAD_OF_COMPARISON.get(operator))
        self.skip()
        value = self.string()
        return _equals(key, value) if operator == "=" else _differs(key, value)

    def prefix(self) -> _Test:
        remedy = 'write `hasPrefix(attributes.key, "value")`'
        self.skip()
        opened = self.at
        self.expect("(", "`(`", remedy)
        self.expect("attributes", "`attributes`", remedy)
        self.expect(".", "`.`", remedy)
        key = self.key()
        self.expect(",", "`,`", remedy)
        value = self.string()
        self.close(opened, "`)`", remedy)
        return _starts(key, value)

    def key(self) -> str:
        if self.token.startswith('"'):
            return self.string()
        if self.token[:1] in _QUOTES:
            raise self.error("a key", _STRAIGHT)
        key, meant = self.ahead(_KEY), self.ahead(_KEY_AS_MEANT)
        if not meant:
            raise self.error("a key")
        self.move(self.at + len(key))
        if key != meant:
            raise self.error("only letters, digits, `_` and `-` in a key without quotes", f"write `{_quoted(meant)}`")
        return key

    def string(self) -> str:
        found = _STRING.match(self.text, self.at)
        if found is None:
            raise self.error("a string in double quotes", self.string_remedy())
        if not found[2]:
            end = found.end()
            if end + 1 < len(self.text):
                problem = rf"found {_shown(self.text[end : end + 2])} in a string, expected `\"` or `\\`"
                raise InvalidFilter(self.text, end, rf"{problem}; write `\\` for a backslash, any other character as it is")
            raise self.error('a `"` that ends the string', r"add it; a quote inside the string is written `\"`")
        self.move(found.end())
        return _ESCAPE.sub(r"\1", found[1])

    def condition_remedy(self) -> str | None:
        word = self.token
        remedy = _INSTEAD_OF_CONDITION.get(word.lower())
        if remedy is None and word.isidentifier() and word.isascii():
            return f"for an attribute of this name, write `attributes.{word}`"
        return remedy

    def string_remedy(self) -> str | None:
        if self.token[:1] in _QUOTES:
            return _STRAIGHT
        meant = self.ahead(_STRING_AS_MEANT)
        return f"write `{_quoted(meant)}`" if any(map(str.isalnum, meant)) else None

    def ahead(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        return found[0] if found else ""

    def move(self, to: int) -> None:
        # Every token starts with a character that is not blank, so the search skips only white space.
        found = _TOKEN.search(self.text, to)
        self.at, self.token = (found.start(), found[0]) if found else (len(self.text), "")

    def skip(self) -> None:
        self.move(self.at + len(self.token))

    def expect(self, token: str, wanted: str, remedy: str) -> None:
        if self.token != token:
            raise self.error(wanted, remedy)
        self.skip()

    def close(self, opened: int, wanted: str, remedy: str | None) -> None:
        if not self.token:
            problem = "found `(` that is never closed, expected its `)` before the end; add that, or remove this"
            raise InvalidFilter(self.text, opened, problem)
        if self.token != ")":
            raise self.error(wanted, remedy)
        self.skip()

    def error(self, wanted: str, remedy: str | None = None) -> InvalidFilter:
        problem = f"found {_shown(self.token)}, expected {wanted}"
        return InvalidFilter(self.text, self.at, f"{problem}; {remedy}" if remedy else problem)


def _check_size(text: str) -> None:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        problem = f"found {text[error.start]!a}, expected a character; this is half of one, which UTF-8 cannot hold"
        raise InvalidFilter(text, error.start, problem) from None
    if len(data) > MAX_BYTES:
        first_outside = len(data[:MAX_BYTES].decode(errors="ignore"))
        problem = f"found {len(data)} bytes of UTF-8, expected at most {MAX_BYTES}; try `hasPrefix` for a list of similar values"
        raise InvalidFilter(text, first_outside, problem)


def _shown(token: str) -> str:
    if not token:
        return "the end"
    return f"`{token}`" if token.isprintable() else ascii(token)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _has(key: str) -> _Test:
    return lambda attributes: key in attributes


def _equals(key: str, value: str) -> _Test:
    return lambda attributes: attributes.get(key) == value


def _differs(key: str, value: str) -> _Test:
    return lambda attributes: attributes.get(key) != value


def _starts(key: str, prefix: str) -> _Test:
    # An empty prefix still requires the key, so a default of "" would be wrong.
    return lambda attributes: (value := attributes.get(key)) is not None and value.startswith(prefix)


def _not(test: _Test) -> _Test:
    return lambda attributes: not test(attributes)


# Loops rather than all() and any(): a generator costs more than the tests it would run.
def _all(tests: tuple[_Test, ...]) -> _Test:
    def every(attributes: Mapping[str, str]) -> bool:
        for test in tests:  # noqa: SIM110
            if not test(attributes):
                return False
        return True

    return every


def _any(tests: tuple[_Test, ...]) -> _Test:
    def some(attributes: Mapping[str, str]) -> bool:
        for test in tests:  # noqa: SIM110
            if test(attributes):
                return True
        return False

    return some
