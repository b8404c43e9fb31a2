"""The error at the bottom of Spark's wrapping. The texts are Spark's own, shortened."""

import pytest

from penstock.cli.main import exit_code
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, TopicNotFound
from penstock.pipeline.failure import as_penstock_error, failure_of

WORKER = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "reader.py", line 17, in read
    raise TopicNotFound("orders")
penstock.errors.TopicNotFound: Topic not found: orders
create it first, or check the spelling of the name
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: [id = aaaf5cf3, runId = 74259c4f]
"""
PLANNING = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source initialize source: Traceback (most recent call last):
  File "source.py", line 25, in streamReader
penstock.errors.InvalidArgument: view is 'x', expected one of messages

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "python_streaming_source_runner.py", line 295, in main
UnboundLocalError: cannot access local variable 'reader' where it is not associated with a value
 SQLSTATE: 38000
"""
FOREACH = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "clientserver.py", line 644, in _call_proxy
  File "archive.py", line 41, in each
penstock.errors.FailedPrecondition: the lake is of another log
take another

=== Streaming Query ===
"""
USER = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "mine.py", line 18, in read
ValueError: bad: thing
 SQLSTATE: 38000
"""
COLUMN = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nonsense` cannot be resolved. SQLSTATE: 42703; line 1 pos 0;
'Filter ('nonsense = 3)
"""
MASTER = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'nonsense'
\tat org.apache.spark.SparkContext.<init>(SparkContext.scala:587)
"""
CAUSED = """An error occurred while calling o1.start.
: java.lang.RuntimeException: outer
\tat a.b.C(D.scala:1)
Caused by: java.io.IOException: No space left on device
\tat a.b.C(D.scala:1)
"""
STREAM = "[STREAM_FAILED] Query [id = 1] terminated with exception: [PATH_NOT_FOUND] Path does not exist: a. SQLSTATE: 42K03"


@pytest.mark.parametrize(
    ("text", "kind", "message", "hint", "code"),
    [
        (WORKER, TopicNotFound, "Topic not found: orders", TopicNotFound.hint, 3),
        (PLANNING, InvalidArgument, "view is 'x', expected one of messages", None, 2),
        (FOREACH, FailedPrecondition, "the lake is of another log", "take another", 1),
        (USER, PenstockError, "a part of the pipeline failed: ValueError: bad: thing", None, 1),
        (COLUMN, PenstockError, "Spark failed: A column with name `nonsense` cannot be resolved.", None, 1),
        (MASTER, PenstockError, "Spark failed: Could not parse Master URL: 'nonsense'", None, 1),
        (CAUSED, PenstockError, "Spark failed: No space left on device", None, 1),
        (STREAM, PenstockError, "Spark failed: Path does not exist: a.", None, 1),
        ("", PenstockError, "Spark failed: RuntimeError", None, 1),
        ("penstock.errors.NoSuchError: gone", PenstockError, "gone", None, 1),
        ("penstock.errors.SECOND: gone", PenstockError, "gone", None, 1),
    ],
    ids=["worker", "planning", "foreach", "user", "column", "master", "caused", "stream", "empty", "unknown", "no error"],
)
def test_the_cause_is_told_in_a_sentence(text: str, kind: type, message: str, hint: str | None, code: int) -> None:
    failure = failure_of(RuntimeError(text))

    assert isinstance(failure, kind)
    assert (str(failure), failure.hint) == (message, hint)
    assert exit_code(failure) == code


def test_a_very_long_text_is_cut() -> None:
    assert len(str(failure_of(RuntimeError("x" * 1_000_000)))) < 1_100


def test_an_error_of_ours_stays_what_it_is() -> None:
    error = TopicNotFound("orders")

    assert failure_of(error) is error
    with pytest.raises(TopicNotFound), as_penstock_error():
        raise error


def test_an_interrupt_is_no_failure() -> None:
    with pytest.raises(KeyboardInterrupt), as_penstock_error():
        raise KeyboardInterrupt


def test_a_worker_that_came_up_too_late_is_no_failure_of_the_job() -> None:
    error = failure_of(RuntimeError("org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.apache…"))

    assert error.transient
    assert error.transient
    assert not failure_of(RuntimeError("something else")).transient
