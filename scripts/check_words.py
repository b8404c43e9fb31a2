"""Checks the words of what people read: docstrings, comments, texts of errors, logs and help, and the documentation.

The readers are engineers, most of them not native speakers. `PATTERNS` has phrases that they stumble over, each with
what to write instead. `make lint` runs this; it prints every place and fails if there is one.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "examples", "scripts", "docs")

# A phrase of the documentation of websockets, Django or PostgreSQL is a good phrase.
PATTERNS = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (
            r"(?<!somebody )(?<!user )\b[Ww]ho(?:ever)? (?:asks|calls|comes|gives|holds|needs|reads|returns|waits)\b(?! what)",
            "name the noun: 'the holder', 'readers', 'clients that wait'",
        ),
        (r"\b(?:for|of|to|by|from|with) who\b|\bwhat is told\b", "name the noun: 'for clients that …', 'the notification'"),
        (
            r"\bso (?:many|long)\b(?! as\b| that\b)|\bas (?:many|much) as may be\b",
            "name the parameter: 'at most `limit`', 'for `seconds`'",
        ),
        (r"\b(?:is|are|was|were|be|been|being) wanted\b|\bnot as wanted\b|, wanted\b", "'expected'"),
        (r"\b(?:is|are|was|were|be|been|being) told\b", "'is notified', 'is reported', 'gets the error'"),
        (r"\btells\b", "'reports', 'returns', 'distinguishes'"),
        (r"\b(?:come|comes|came|coming) again\b", "'is redelivered', 'is delivered again'"),
        (r"\b(?:go|goes|went|going) back\b(?! (?:to|in) (?:20|19))", "'is requeued', 'is released', 'returns'"),
        (
            r"\b(?:give|gives|gave|given|giving) (?:it |them |everything |all |messages? )?back\b",
            "'release', 'is released', 'return'",
        ),
        (r"\b(?:go|goes|went|going) on\b", "'continue'"),
        (r"\b[Bb]egun\b", "'started'"),
        (r"\banew\b", "'again', 'from the start'"),
        (r"\bfor ever\b", "'forever'"),
        (r"\bof late\b", "'recently'"),
        (r"\bin good order\b", "'cleanly'"),
        (r"\bminded\b", "'ignored', 'noticed'"),
        (r"\bbears?\b(?! in)", "'carries', 'has', 'tolerates'"),
        (r"\bhand(?:s|ed|ing)? out\b", "'deliver'"),
        (r"\bto anybody\b", "name the noun, or leave it out"),
        (r"\bmade again\b", "'created again', 'repeated', 'renewed'"),
        (r"\bby this very\b|\bas may be\b", "'by exactly this', 'as possible'"),
        (r"\b(?:has|have) said who\b", "'is authenticated'"),
    )
)

_FENCE = re.compile(r"^ *```")
_CODE = re.compile(r"`[^`\n]*`")


def texts_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield first line and text of every comment, and of every string that has more than one word."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "COMMENT" or (kind in {"STRING", "FSTRING_MIDDLE"} and " " in token.string):
            yield token.start[0], token.string


def texts_of_markdown(source: str) -> Iterator[tuple[int, str]]:
    """Yield every line of prose: not what is inside fences."""
    is_code = False
    for number, line in enumerate(source.splitlines(), start=1):
        if _FENCE.match(line):
            is_code = not is_code
        elif not is_code:
            yield number, line


def errors_in(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Yield line and message of every phrase to replace."""
    texts = texts_of_python if path.suffix in {".py", ".pyi"} else texts_of_markdown
    for first, text in texts(source):
        prose = _CODE.sub(lambda code: " " * len(code[0]), text)
        for pattern, advice in PATTERNS:
            for found in pattern.finditer(prose):
                line = first + text.count("\n", 0, found.start())
                yield line, f"{found[0]!r}: write {advice}"


def files() -> list[Path]:
    """Every file that is checked."""
    found = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    return [path for path in sorted(found) if path.suffix in {".py", ".pyi", ".md"} and path != Path(__file__)]


def main() -> int:
    """Check every file, print what is wrong, and return the exit code."""
    errors = [
        f"{path.relative_to(ROOT)}:{line}: {message}"
        for path in files()
        for line, message in errors_in(path, path.read_text(encoding="utf-8"))
    ]
    sys.stdout.write("".join(f"{error}\n" for error in errors))
    sys.stdout.write(f"{len(errors)} phrases to replace\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
