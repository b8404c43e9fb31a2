"""One engine process for all tests of a module, with limits that are reached quickly."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from penstock.transforms import Limits, Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    if find_spec("quickjs") is None:
        pytest.skip("needs the extra: pip install 'penstock[transforms]'")
    sandbox = Sandbox(Limits(cpu=0.1, wall=0.4, memory=48 << 20))
    yield sandbox
    sandbox.close()
