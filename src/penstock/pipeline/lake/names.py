"""Names of directories and files in the lake: `stream=…` and `date=…`, escaped so that readers find the names again."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.errors import InvalidArgument

HIDDEN = "_penstock"
"""What begins with an underscore is no data to Spark, Arrow and others."""
LONGEST = 255 - len("stream=")
"""Bytes of a name: file systems allow 255 of them."""

_SPECIAL = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 32)}
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
# What Spark would take for a number, a date or a time, or for no value: the directory must not look like it.
_GUESSED = re.compile(r"[+-]?\.?[0-9]|NaN|[+-]?Inf|__HIVE_DEFAULT_PARTITION__\Z|[Nn][Uu][Ll][Ll]\Z|(true|false)\Z")
_MARK = "~"


def lake_path(lake: str | os.PathLike[str]) -> Path:
    """The directory of a lake, from a path or a `file:` URL. Others have no rename that a commit could rely on."""
    text = os.fspath(lake) if isinstance(lake, str | os.PathLike) else lake
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgument.of("lake", lake, "the path of a directory, or a file: URL")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", text)
    if scheme is None:
        return Path(os.path.abspath(text))  # noqa: PTH100  # resolve() would follow links, and name another place than was asked for
    parts = urlsplit(text)
    if scheme[1].lower() != "file" or parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise InvalidArgument.of(
            "lake", text, "a path or a file: URL of this machine, or of a file system that all machines share",
            hint="mount the store as a file system; object stores have no rename that a commit could rely on",
        )  # fmt: skip
    return Path(os.path.abspath(unquote(parts.path)))  # noqa: PTH100


def directory(stream: str, date: str) -> str:
    """Where rows of a stream and a day lie below the table; a table without streams has "" for it."""
    return f"stream={escaped(stream)}/date={date}" if stream else f"date={date}"


def escaped(stream: str) -> str:
    """A stream's name as the name of a directory, as Spark escapes it.

    One that Spark would take for a number or a date has its first character escaped too, which keeps it text. One that is too
    long for a file system is cut and marked with its hash; the manifest alone has it whole.
    """
    text = "".join(f"%{ord(character):02X}" if character in _SPECIAL else character for character in stream)
    if _GUESSED.match(stream) and not text.startswith("%"):
        text = f"%{ord(text[0]):02X}{text[1:]}"
    if len(text.encode()) <= LONGEST:
        return text
    mark = _MARK + hashlib.sha256(stream.encode()).hexdigest()[:32]
    cut = text.encode()[: LONGEST - len(mark)].decode(errors="ignore")
    return re.sub(r"%[0-9A-Fa-f]?\Z", "", cut) + mark


def unescaped(text: str) -> str:
    """The name in a directory's name, as Spark reads it."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
