"""Converts errors of Spark to errors of Penstock: the root cause, without the stack traces around it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from penstock import errors
from penstock.errors import PenstockError, Unavailable

_OURS = re.compile(r"^(?:.*: )?penstock\.errors\.(\w+): (.*)$", re.MULTILINE)
_PYTHON = re.compile(r"^(?!\s)(?:[\w.]+\.)?(\w*(?:Error|Exception|Exit|Interrupt|Warning|Timeout)): (.*)$", re.MULTILINE)
_JAVA = re.compile(r"^(?:: |Caused by: )[\w.$]+: (.*)$", re.MULTILINE)
_HEADING = re.compile(r"^\[[A-Z_.]+\] ")
_STATE = re.compile(r" ?SQLSTATE: \w+.*$")
_NOT_A_HINT = re.compile(r"^(?:\s|\tat |JVM stacktrace|During handling|The above exception|SQLSTATE|=== |\.\.\. |$)")
_LONGEST = 1_000
_LATE = "Python worker failed to connect back"
TOO_LATE = "Spark waits ten seconds for a Python worker to come up, and one came up later"
"""The error text for `_LATE`. It is not an error of the job: the same job may succeed when it is started again."""


@contextmanager
def as_penstock_error() -> Iterator[None]:
    """Convert every error inside to a readable error."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # Spark and Java raise many types; all are raised again as errors of Penstock
        raise failure_of(error) from None


def failure_of(error: BaseException) -> PenstockError:
    """The readable error. An error of Penstock that was raised inside Spark is restored with its class."""
    if isinstance(error, PenstockError):
        return error
    text = str(error).partition("\tSuppressed: ")[0]  # errors during the clean-up are not the cause
    ours = list(_OURS.finditer(text))
    if ours:
        return _revived(ours[-1], text)
    if _LATE in text:
        return Unavailable(TOO_LATE, hint="the machine is busy: start it again, or with fewer things beside it")
    python = list(_PYTHON.finditer(text))
    if python and "Traceback (most recent call last)" in text:
        return PenstockError(f"a part of the pipeline failed: {python[-1][1]}: {_clipped(python[-1][2])}")
    return PenstockError(f"Spark failed: {_clipped(_plain(text)) or type(error).__name__}")


def _revived(found: re.Match[str], text: str) -> PenstockError:
    """Restore an error of Penstock from the last lines of its traceback: the class, the text, and the hint, which is its note."""
    named = getattr(errors, found[1], None)
    kind = named if isinstance(named, type) and issubclass(named, PenstockError) else PenstockError
    following = text[found.end() :].lstrip("\n").partition("\n")[0]
    hint = None if _NOT_A_HINT.match(following) else _clipped(following)
    # Some classes build their text from fields; here only the text is known.
    told: type[PenstockError] = type(kind.__name__, (kind,), {"__init__": PenstockError.__init__, "__str__": Exception.__str__})
    return told(_clipped(found[2]), hint=hint)


def _plain(text: str) -> str:
    """The error text without the headings of Spark and Java, from the last of the causes."""
    java = _JAVA.findall(text)
    sentence = java[-1] if java else next((line for line in text.splitlines() if line.strip()), "")
    sentence = sentence.rpartition("terminated with exception: ")[2]
    while _HEADING.match(sentence):
        sentence = _HEADING.sub("", sentence)
    return _STATE.sub("", sentence).strip()


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
