"""Every module and name that README, the documentation and the examples show can be imported."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, name

EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PACKAGES = {"penstock", "pyspark_penstock"}
NOT_PYTHON = {
    # files
    *("penstock.db", "penstock.service", "penstock.toml", "penstock.example"),
    # attributes of dead letters and of messages that a job has published again
    *("penstock.attempts", "penstock.last_error", "penstock.reason", "penstock.source", "penstock.source_message_id"),
    *("penstock.publish_time", "penstock.replay", "penstock.replayed_from"),
}

# What the pages showed before the packages were rearranged. Programs that were written after them must still start.
SHOWN_BEFORE = """
    penstock.Broker penstock.DeadLetterPolicy penstock.FlowControl penstock.IncomingMessage penstock.Message
    penstock.MessageQueue penstock.PubSub penstock.PublishOptions penstock.PublisherFlowControl penstock.QueueConfig
    penstock.QueueManager penstock.ReceivedMessage penstock.RetryPolicy penstock.SubscriptionOptions penstock.Worker
    penstock.broker.arrow.read_events penstock.broker.arrow.read_stream penstock.broker.journal.Journal
    penstock.broker.journals.sqlite.SqliteJournal penstock.client.HubClient penstock.errors.DataDirectoryInUse
    penstock.errors.InvalidAckId penstock.errors.InvalidArgument penstock.errors.InvalidFilter
    penstock.errors.JournalUnavailable penstock.errors.PenstockError penstock.ids.message_id
    penstock.log.directory.DirectoryLog penstock.log.open.open_log penstock.pipeline.core.lifecycle.Event
    penstock.pipeline.core.lifecycle.Lives penstock.pipeline.job.Plan penstock.pipeline.job.Target
    penstock.pipeline.jobs.archive penstock.pipeline.jobs.lifecycle penstock.pipeline.jobs.metrics
    penstock.pipeline.lake.table.Lake penstock.pipeline.messages penstock.pipeline.plot.write_html
    penstock.pipeline.project.SINK penstock.pipeline.project.write_project penstock.pipeline.session.session
    penstock.pipeline.source.PenstockDataSource penstock.sync.PubSub penstock.testing.FaultyDisk penstock.testing.ManualClock
    penstock.testing.Report penstock.testing.Simulation penstock.testing.certificates.Authority penstock.testing.check_journal
    penstock.testing.conformance.JOURNAL_CHECKS penstock.testing.hostile.HOSTILE penstock.testing.proxy.Direction
    penstock.testing.proxy.FaultyProxy penstock.testing.server.LocalServer penstock.testing.server.ServerProcess
    penstock.testing.target.Target penstock.testing.target.in_turn
    penstock.testing.target.respond penstock.work.NewMessage penstock.worker.Reject penstock.worker.Retry
"""

_DOTTED = re.compile(r"(?<![\w./-])penstock(?:\.[A-Za-z_]\w*)+")
_INLINE = re.compile(r"`([^`\n]+)`")


def imports(text: str) -> Iterator[str]:
    """The dotted names that the import statements of a program bind, `penstock.errors.PublishError` and the like."""
    for node in ast.walk(compile(text, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.partition(".")[0] in PACKAGES)
            case ast.ImportFrom(module=str(origin), names=names) if origin.partition(".")[0] in PACKAGES:
                yield from (f"{origin}.{alias.name}" for alias in names)


def dotted(text: str) -> Iterator[str]:
    """The dotted names in a piece of code, whatever its language."""
    return (found for found in _DOTTED.findall(text) if found not in NOT_PYTHON)


def shown() -> Iterator[tuple[str, str]]:
    """Every page or example, with each name that it shows."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in blocks(text):
            if block.language == "python":
                yield from ((name(page), each) for each in imports(block.text))
            yield from ((name(page), each) for each in dotted(block.text))
        for code in _INLINE.findall(text):
            yield from ((name(page), each) for each in dotted(code))
    for example in EXAMPLES:
        text = example.read_text(encoding="utf-8")
        yield from ((name(example), each) for each in [*imports(text), *dotted(text)])


@cache
def is_there(path: str) -> bool:
    """Return whether a dotted name is a module, or can be reached from one by attributes."""
    parts = path.split(".")
    for size in range(len(parts), 0, -1):
        module = ".".join(parts[:size])
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module is there, and imports something that is not
            continue
        return has_all(found, parts[size:])
    return False


def has_all(found: object, attributes: list[str]) -> bool:
    for attribute in attributes:
        if not hasattr(found, attribute):
            return False
        found = getattr(found, attribute)
    return True


def test_every_name_that_a_page_or_an_example_shows_can_be_imported(subtests: pytest.Subtests) -> None:
    found = sorted(set(shown()))
    for place, path in found:
        with subtests.test(place=place, path=path):
            assert is_there(path)
    # The search itself works: the names of the first screen, of a table and of an example are among what it finds.
    names = {path for _, path in found}
    assert {"penstock.PubSub", "penstock.testing.server.LocalServer", "penstock.errors"} <= names


def test_a_path_that_was_documented_before_still_works(subtests: pytest.Subtests) -> None:
    for path in SHOWN_BEFORE.split():
        with subtests.test(path=path):
            assert is_there(path)


def test_a_module_that_misses_something_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "incomplete_page_module.py").write_text("import no_such_library_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ModuleNotFoundError, match="no_such_library_at_all"):
        is_there("incomplete_page_module.name")
    assert not is_there("penstock.no_such_module")
    assert not is_there("penstock.errors.NoSuchError")
