"""The pages people read, and the pieces of them that can be checked."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOT_RUN = "<!-- not run -->"

_FENCE = re.compile(r"^( *)(```+)(.*)$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block: its language, its first line in the page, its text, and whether the page says not to run it."""

    language: str
    line: int
    text: str
    is_run: bool

    @property
    def file(self) -> str | None:
        """The name under which the reader saves it: a program says it in its first line."""
        found = re.match(r"# (\w+\.py)\n", self.text) if self.language == "python" else None
        return found and found[1]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(text: str) -> Iterator[Block]:
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        opening = _FENCE.match(lines[index])
        if opening is None:
            index += 1
            continue
        start = index + 1
        end = next((at for at in range(start, len(lines)) if lines[at].strip() == opening[2]), len(lines))
        before = [line for line in lines[:index] if line.strip()]
        yield Block(
            opening[3].strip(), start + 1, "\n".join(lines[start:end]) + "\n", not (before and before[-1].strip() == NOT_RUN)
        )
        index = end + 1


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    kept, fence = [], None
    for line in text.splitlines():
        opening = _FENCE.match(line)
        if fence is None and opening is not None:
            fence = opening[2]
        elif fence is not None:
            fence = None if line.strip() == fence else fence
        else:
            kept.append(line)
    return "\n".join(kept)


def links(text: str) -> list[str]:
    return [target for target in _LINK.findall(prose(text)) if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as a Git host makes them."""
    headings = re.findall(r"^#+ +(.*)$", prose(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table_rows(text: str) -> Iterator[list[str]]:
    """The cells of every row of every table."""
    for line in prose(text).splitlines():
        if line.startswith("|") and not re.match(r"^\|[\s|:-]+\|$", line):
            yield [cell.strip() for cell in line.strip("|").split("|")]
