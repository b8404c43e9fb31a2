"""The command line of the demo. Everything in it is real: the server, the kill, the worker, the HTTP calls, Spark.

The demo ends with exit code 1 at the first claim that does not hold, and leaves nothing running and nothing on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from demo.chapters import break_a_webhook, follow_a_mail, open_shop, run_pipeline, watch_in_browsers
from demo.screen import LiveScreen
from demo.shop import Shop
from penstock import __version__
from penstock.errors import PenstockError
from proof.pipeline_chapter import SparkInstallation
from proof.screen import ClaimFailed

Part = Callable[[Shop], Awaitable[None]]
CHAPTERS = ("shop", "router", "hub", "pipeline")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        prog="penstock demo",
        description="A small shop on Penstock, live: orders, a worker, webhooks, browsers; a kill -9; then Spark over its log.",
        epilog="Ctrl-C ends it at any moment. Nothing is left running or on disk.",
    )
    parser.add_argument("--chapter", choices=CHAPTERS, help="play one chapter only (default: all of them)")
    parser.add_argument("--headless", action="store_true", help="print lines only, without the live picture")
    parser.add_argument(
        "--keep", action="store_true", help="leave the shop open at the end, until Ctrl-C, to look at the console"
    )
    parser.add_argument(
        "--install-spark",
        metavar="COMMAND",
        default="",
        help="a command that installs PySpark and Java; if they are missing, it runs while the first chapters play",
    )
    return parser.parse_args(words)


async def play(screen: LiveScreen, directory: Path, spark: SparkInstallation, found: argparse.Namespace) -> None:
    """Open the shop, and play the chapters in it."""
    chapters: dict[str, list[Part]] = {
        "shop": [open_shop, follow_a_mail],
        "router": [break_a_webhook],
        "hub": [watch_in_browsers],
        "pipeline": [partial(run_pipeline, spark=spark)],
    }
    _end_on_signals()
    screen.say("The server starts …")
    async with Shop(screen, directory) as shop:
        shop.footer = spark.status
        for name in [found.chapter] if found.chapter else CHAPTERS:
            for part in chapters[name]:
                await part(shop)
        if found.keep:
            screen.say(f"\nThe shop stays open: {shop.server.url}/. Press Ctrl-C to end it.")
            async with shop.selling():
                await asyncio.Event().wait()


def _end_on_signals() -> None:
    """Cancel this task on Ctrl-C and SIGTERM, once: what was started is stopped as the task ends."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None, "it runs in one"
    signals = (signal.SIGINT, signal.SIGTERM)

    def end() -> None:
        for number in signals:
            loop.add_signal_handler(number, lambda: None)
        task.cancel()

    for number in signals:
        loop.add_signal_handler(number, end)


def main(words: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when every claim held."""
    found = arguments(words)
    # Lost connections are part of the story; the picture shows them.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    with LiveScreen(headless=found.headless) as screen:
        screen.title(
            f"Penstock {__version__}: a shop on one log", "Real processes, files, clients and time. Each claim is checked."
        )
        is_needed = found.chapter in {None, "pipeline"}
        try:
            with (
                tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory,
                SparkInstallation(
                    screen, found.install_spark if is_needed else "", Path(directory) / "installation.log"
                ) as spark,
            ):
                asyncio.run(play(screen, Path(directory) / "shop", spark, found))
        except ClaimFailed as failure:
            screen.fail(str(failure))
            return 1
        except (KeyboardInterrupt, asyncio.CancelledError):
            screen.say("\nInterrupted. Everything was stopped and removed.")
            return 130
        except PenstockError as error:
            screen.fail(f"{type(error).__name__}: {error}")
            return 1
        screen.say("\nRun it yourself: .venv/bin/penstock serve, then open http://127.0.0.1:8085/. Next: docs/quickstart.md")
        screen.end(f"{screen.claims} claims checked, all held, in {screen.seconds:.0f} s. The data was temporary and is gone.")
    return 0
