"""What every test shares: hypothesis profiles, a working Ctrl-C, and a server for each test process.

HYPOTHESIS_PROFILE selects a profile. `dev` (the default) runs few examples, the same ones each time; `ci` runs more, chosen at
random, and prints how to repeat a failure; `thorough` is for a run overnight.
"""

import itertools
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from penstock.testing.server import LocalServer
from tests.postgres_server import PostgresServer, postgres_server

# No deadline and no "too slow": the machine may be busy with other tests, and pytest-timeout bounds each test as a whole.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Set explicitly: when the variable CI is set, hypothesis derandomizes every profile and keeps no database.
_RANDOM = settings(_PATIENT, derandomize=False, database=DirectoryBasedExampleDatabase(".hypothesis/examples"), print_blob=True)

settings.register_profile("dev", _PATIENT, max_examples=25, stateful_step_count=30, derandomize=True, database=None)
settings.register_profile("ci", _RANDOM, max_examples=100, stateful_step_count=50)
settings.register_profile("thorough", _RANDOM, max_examples=2_000, stateful_step_count=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# A shell starts background jobs with SIGINT ignored, and every process that a test interrupts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def process_without_the_lake(request: pytest.FixtureRequest) -> None:
    """Parallel processes do not import the lake's libraries: docs/decisions/0053-tests-of-the-lake-run-apart.md."""
    is_parallel = "PYTEST_XDIST_WORKER" in os.environ and "not alone" in request.config.option.markexpr
    if is_parallel and "deltalake" in sys.modules:
        pytest.fail("a test module imports deltalake: mark it `alone`, and name it in LAKE_TESTS of the Makefile")


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A durable server, started on first use. Each test uses a project of its own."""
    with LocalServer(data_dir=tmp_path_factory.mktemp("shared-server")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server, started on first use. Each test uses a database of its own."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def project() -> str:
    """A project that no other test uses."""
    return f"project-{next(_numbers)}"
