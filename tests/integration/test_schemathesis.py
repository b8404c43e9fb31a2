"""Schemathesis over the server's own OpenAPI document: no route fails inside, and each answers as the document says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.testing.server import LocalServer

CALL_SECONDS = 10.0
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@schemathesis.serializer("application/vnd.apache.arrow.stream")
def as_it_is(_: object, value: object) -> bytes:
    """A body that is no text: whatever was made up for it."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


few = settings(
    max_examples=max(5, settings().max_examples // 5),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def attack(operation: Any) -> None:
    """Requests for one operation, right and wrong ones."""

    @few
    @given(st.data())
    def run(data: st.DataObject) -> None:
        mode = data.draw(st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE]))
        case = data.draw(operation.as_strategy(generation_mode=mode))
        case.call_and_validate(timeout=CALL_SECONDS, checks=CHECKS)

    run()


def test_every_route_answers_as_documented(server: LocalServer) -> None:
    # WebSockets are left out: they are opened, not called.
    api = schemathesis.openapi.from_url(server.url + "/openapi.json").exclude(path_regex="/ws/")
    faults, count = [], 0
    for result in api.get_all_operations():
        assert isinstance(result, Ok), f"the document is wrong: {result}"
        operation = result.ok()
        count += 1
        try:
            attack(operation)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with one route, the others are tried as well
            faults.append(f"{operation.label}: {error}")
    assert count >= 20, "the document has lost its routes"
    assert not faults, f"{len(faults)} of {count} operations:\n" + "\n\n".join(faults)
