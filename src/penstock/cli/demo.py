"""`penstock demo`: run the demo, which is in the repository and not in the package."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from penstock.cli.command import Parser
from penstock.errors import FailedPrecondition

EXAMPLES = Path(__file__).parents[3] / "examples"
"""Exists only in a checkout."""
CHAPTERS = ("shop", "router", "hub", "pipeline")


def configure(parser: Parser) -> None:
    """Add the flags that are passed to the demo."""
    parser.add_argument("--chapter", choices=CHAPTERS, help="play one chapter only (default: all of them)")
    parser.add_argument("--headless", action="store_true", help="print lines only, without the live picture")
    parser.add_argument("--keep", action="store_true", help="leave the shop open at the end, until Ctrl-C")
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Replace this process by the demo."""
    if not (EXAMPLES / "demo").is_dir():
        raise FailedPrecondition(
            "the demo is part of Penstock's repository, and this is an installed package",
            hint="clone the repository and run `make demo` there",
        )
    words = [f"--{name}" for name in ("headless", "keep") if getattr(found, name)]
    if found.chapter is not None:
        words += ["--chapter", found.chapter]
    path = os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.execve(sys.executable, [sys.executable, "-m", "demo", *words], os.environ | {"PYTHONPATH": path})  # our own program
