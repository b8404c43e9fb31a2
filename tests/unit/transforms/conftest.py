"""Engine processes shared by the tests of a module, with limits that are reached quickly."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from penstock.extras import how_to_install
from penstock.transforms import Limits, Sandbox


def with_limits(limits: Limits) -> Iterator[Sandbox]:
    if find_spec("quickjs") is None:
        pytest.skip(f"needs the extra: {how_to_install('transforms')}")
    sandbox = Sandbox(limits)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """A sandbox that never runs out of real time, however busy the machine is."""
    yield from with_limits(Limits(cpu=0.2, wall=60, memory=48 << 20))


@pytest.fixture(scope="module")
def impatient() -> Iterator[Sandbox]:
    """A sandbox for scripts that only the limit of real time stops."""
    yield from with_limits(Limits(cpu=0.2, wall=1, memory=48 << 20))
