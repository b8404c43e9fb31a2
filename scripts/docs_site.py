"""What `make docs` does to the pages of docs/ to make a site of them: a hook of mkdocs.

- adds the reference, made from the code by scripts/reference.py, and README, CHANGELOG and CONTRIBUTING;
- directs links to those; a link to any other file outside docs/ becomes its path, since a site has no sources.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath
from posixpath import relpath as relative_path
from typing import Any

from mkdocs.structure.files import File, Files

from scripts import reference

ROOT = Path(__file__).parent.parent
FROM_THE_TOP = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "overview.md"}

_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    made = {f"reference/{name}": text for name, text in reference.pages().items()}
    made |= {to: (ROOT / name).read_text(encoding="utf-8") for name, to in FROM_THE_TOP.items()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Direct the links that lead out of docs/."""
    source = page.file.src_uri
    # A page from the top of the checkout has links as seen from there.
    folder = "." if source in FROM_THE_TOP.values() else normpath(f"docs/{source}/..")

    def directed(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = normpath(f"{folder}/{target}")
        if ":" in target or (path.startswith("docs/") and folder != "."):
            return found[0]
        inner = FROM_THE_TOP.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if inner is None:
            return text if text.startswith("`") else f"{text} (`{path}`)"
        start = normpath(f"{source}/..")
        return f"[{text}]({relative_path(inner, start)}{anchor})"

    return _LINK.sub(directed, markdown)
