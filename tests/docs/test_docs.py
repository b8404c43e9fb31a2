"""What the pages say is true: their code runs, their links lead somewhere, their tables agree with the code."""

import ast
import asyncio
import dataclasses
import inspect
import re
from functools import cache
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock import (
    Broker,
    DeadLetterPolicy,
    FlowControl,
    Message,
    MessageQueue,
    PubSub,
    QueueConfig,
    QueueManager,
    RetryPolicy,
    SubscriptionOptions,
    errors,
    extras,
    testing,
)
from penstock.broker.writer import FLUSH_INTERVAL
from penstock.errors import PenstockError
from penstock.testing.server import LocalServer
from tests.docs.pages import PAGES, ROOT, anchors, blocks, links, name, prose, table_rows

README = ROOT / "README.md"
DOCS = ROOT / "docs"
RUN_AT_ONCE = {README, DOCS / "quickstart.md"}
RUN = [
    pytest.param(page, id=name(page), marks=[] if page in RUN_AT_ONCE else pytest.mark.long)
    for page in PAGES
    if any(block.language == "python" for block in blocks(page.read_text(encoding="utf-8")))
]
OPTIONS = [SubscriptionOptions, RetryPolicy, DeadLetterPolicy, FlowControl, QueueConfig, Message]
RESULTS = [
    penstock.DeadLetter,
    penstock.Explanation,
    penstock.NackResult,
    penstock.PublishResult,
    penstock.QueueMessage,
    penstock.QueueStats,
    penstock.SubscriptionMetadata,
    penstock.SubscriptionStats,
    penstock.TopicMetadata,
]
ERRORS = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, PenstockError)]
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|work|tmp|Users|mnt|var|opt|srv)/\S*|[A-Z]:\\\S*")


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def fields(cls: type) -> dict[str, object]:
    """The fields of a public class with their defaults; `...` where there is none."""
    if issubclass(cls, msgspec.Struct):
        missing: object = msgspec.NODEFAULT
        return {
            field.name: ... if field.default is missing and field.default_factory is missing else _default(field)
            for field in msgspec.structs.fields(cls)
        }
    return {
        field.name: ... if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]  # every class given here that is no Struct is a dataclass
    }


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


@cache
def mentioned() -> set[str]:
    """Every word that any page shows as code or as a heading."""
    return words("\n".join(prose(read(page)) for page in [README, *DOCS.glob("*.md")]))


def words(text: str) -> set[str]:
    """Every word that a page shows as code or as a heading."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`|^#.*$", text, flags=re.MULTILINE))))


def test_every_python_block_parses(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        for block in blocks(read(page)):
            if block.language == "python":
                with subtests.test(page=name(page), line=block.line):
                    compile(block.text, name(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


def test_no_page_or_example_installs_what_no_index_has() -> None:
    """How it is installed is said in one place of the code, too: `scripts/check_layout.py` checks that."""
    texts = [*PAGES, *(ROOT / "examples").rglob("*.py"), *(ROOT / "src").rglob("*.md")]
    found = [name(text) for text in texts if re.search(r"pip install (?:-\S+ )*['\"]?penstock\b", read(text))]
    assert found == [] or extras.PUBLISHED


@pytest.mark.parametrize("page", RUN)
def test_every_python_block_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        try:
            for block in blocks(read(page)):
                if block.language == "python" and block.is_run and block.file is None:
                    # The blank lines in front make a traceback show the line of the page. A page may await, as a prompt may.
                    text, flags = "\n" * (block.line - 1) + block.text, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                    started = eval(compile(text, name(page), "exec", flags), namespace)
                    if inspect.iscoroutine(started):
                        runner.run(started)
        finally:
            for value in namespace.values():
                if isinstance(value, MessageQueue | QueueManager | Broker):
                    value.close()
                elif isinstance(value, PubSub):
                    runner.run(value.close())


def test_the_readme_example_does_the_same_again_and_on_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    embedded = next(block.text for block in blocks(read(README)) if block.language == "python")
    with LocalServer() as server:
        remote = embedded.replace('data_dir="penstock-data"', repr(server.url))
        assert remote != embedded
        printed = []
        for text in (embedded, embedded, remote):
            exec(compile(text, "README.md", "exec"), {})
            printed.append(re.sub(r"[0-9a-f]{30}", "ID", capsys.readouterr().out))

    assert printed[0]
    assert printed == printed[:1] * 3


def test_every_relative_link_leads_somewhere(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        for target in links(read(page)):
            with subtests.test(page=name(page), link=target):
                path, _, anchor = target.partition("#")
                goal = (page.parent / path).resolve() if path else page
                assert goal.exists()
                assert not anchor or anchor in anchors(read(goal))


def test_every_guarantee_names_tests_that_exist(subtests: pytest.Subtests) -> None:
    rows = [row for row in table_rows(read(DOCS / "guarantees.md")) if "test_" in row[-1]]
    for promise, proof in rows:
        with subtests.test(promise=promise):
            proofs = re.findall(r"\]\(\.\./([\w/]+\.py)\)((?: `\w+`)+)", proof)
            assert len(proofs) == proof.count("](")
            for file, tests in proofs:
                source = (ROOT / file).read_text(encoding="utf-8")
                assert [test for test in re.findall(r"\w+", tests) if f"def {test}(" not in source] == []
    assert len(rows) >= 9


def test_no_page_shows_a_path_of_a_machine() -> None:
    found = {name(page): MACHINE_PATH.findall(read(page)) for page in PAGES}
    assert {page: paths for page, paths in found.items() if paths} == {}


@pytest.mark.parametrize("folder", ["docs", "docs/decisions", "docs/howto"])
def test_every_page_is_reached_from_its_index(folder: str) -> None:
    index = ROOT / "docs" / ("decisions/README.md" if folder == "docs/decisions" else "index.md")
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in links(read(index))}

    assert [page.name for page in (ROOT / folder).glob("*.md") if page != index and page.resolve() not in linked] == []


def test_every_public_name_is_documented() -> None:
    public = {*penstock.__all__, *testing.__all__} - {"__version__"}
    assert sorted(public - mentioned()) == []


@pytest.mark.parametrize("cls", [MessageQueue, QueueManager], ids=lambda cls: cls.__name__)
def test_every_method_and_argument_is_documented(cls: type) -> None:
    page = words(prose(read(DOCS / ("message-queue.md" if cls is MessageQueue else "queue-manager.md"))))
    missing = []
    for method, function in inspect.getmembers(cls, callable):
        if not method.startswith("_"):
            arguments = inspect.signature(function).parameters
            missing += [word for word in [method, *arguments] if word not in page and word not in {"self", "cls"}]
    assert missing == []


@pytest.mark.parametrize("cls", [MessageQueue, QueueManager], ids=lambda cls: cls.__name__)
def test_calls_are_shown_with_the_arguments_they_take(cls: type) -> None:
    page = prose(read(DOCS / ("message-queue.md" if cls is MessageQueue else "queue-manager.md")))
    wrong = []
    for method, inside in re.findall(r"`(\w+)\(([^`()]*)\)(?: -> [^`]*)?`", page):
        if not callable(getattr(cls, method, None)):
            continue
        parameters = dict(inspect.signature(getattr(cls, method)).parameters)
        parameters.pop("self", None)
        shown = [part.strip() for part in inside.split(",") if part.strip() not in {"", "…"}]
        # `nack(requeue=False)` is a call, `nack(queue, message_id, requeue=True)` a signature, which states the defaults.
        is_signature = shown[:1] == [*parameters][:1]
        for argument, _, default in (part.partition("=") for part in shown):
            known = parameters.get(argument)
            is_literal = re.fullmatch(r"None|True|False|\d+|\"[^\"]*\"", default) is not None
            if known is None or (is_signature and is_literal and ast.literal_eval(default) != known.default):
                wrong.append(f"{method}({inside}): {argument}")
    assert wrong == []


def test_every_field_of_a_result_is_documented() -> None:
    missing = {cls.__name__: [field for field in fields(cls) if field not in mentioned()] for cls in RESULTS}
    assert {name: found for name, found in missing.items() if found} == {}


def test_every_field_of_a_received_message_is_documented() -> None:
    page = words(prose(read(DOCS / "message-queue.md")))
    assert [member for member in dir(penstock.ReceivedMessage) if not member.startswith("_") and member not in page] == []


@pytest.mark.parametrize("cls", OPTIONS, ids=lambda cls: cls.__name__)
def test_every_option_is_documented_with_its_default(cls: type) -> None:
    page = DOCS / ("queue-manager.md" if cls is QueueConfig else "message-queue.md")
    rows = [row for row in table_rows(read(page)) if len(row) == 4]
    wrong = []
    for option, default in fields(cls).items():
        stated = [row[1] for row in rows if row[0] == f"`{option}`"]
        wanted = "required" if default is ... else default
        if not any((cell if cell == "required" else ast.literal_eval(cell.strip("`"))) == wanted for cell in stated):
            wrong.append((option, stated, default))
    assert wrong == []


def test_every_error_is_documented_as_it_is(subtests: pytest.Subtests) -> None:
    rows = {row[0]: row for row in table_rows(read(DOCS / "errors.md"))}
    tree = next(block.text for block in blocks(read(DOCS / "errors.md")))
    for error in ERRORS:
        with subtests.test(error=error.__name__):
            code, reason, transient = rows[f"`{error.__name__}`"][1:4]
            assert (code, reason, transient) == (str(error.code), f"`{error.reason}`", "yes" if error.transient else "no")
            assert error.__name__ in tree


def test_no_documented_error_is_made_up() -> None:
    documented = {row[0].strip("`") for row in table_rows(read(DOCS / "errors.md")) if row[0].startswith("`")}
    assert documented == {error.__name__ for error in ERRORS}


def test_the_promise_about_acks_is_kept_with_time_to_spare_for_the_disk() -> None:
    promised = {name(page): re.findall(r"within (\d+) ms", page.read_text(encoding="utf-8")) for page in PAGES}
    for page in ("docs/guarantees.md", "docs/durability.md", "docs/architecture.md"):
        assert set(promised[page]) == {"100"}, page
    assert FLUSH_INTERVAL * 2 <= 100_000
