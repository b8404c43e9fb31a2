"""Schemathesis over the server's own OpenAPI document: no route fails inside, and each answers as the document says."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.testing.server import LocalServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

CALL_SECONDS = 60.0
AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]})
EXISTING = {
    "project": "fuzz",
    "topic": "fuzz-topic",
    "subscription": "fuzz-sub",
    "snapshot": "fuzz-snap",
    "schema": "fuzz-schema",
}

few = settings(
    max_examples=max(5, settings().max_examples // 5),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def as_it_is(_: object, value: object) -> bytes:
    """A body that is no text: whatever was made up for it."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


def attack(document: Any, base_url: str) -> int:
    """Send requests for every operation, right and wrong ones; returns how many operations there are."""
    # Imported here, so that the rings without these tests need not wait for it.
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.result import Ok
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
    ]
    schemathesis.serializer("application/vnd.apache.arrow.stream")(as_it_is)
    api = schemathesis.openapi.from_dict(document)
    api.config.update(base_url=base_url)

    def fuzz(operation: Any) -> None:
        @few
        @given(st.data())
        def run(data: st.DataObject) -> None:
            mode = data.draw(st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE]))
            case = data.draw(operation.as_strategy(generation_mode=mode))
            case.call_and_validate(timeout=CALL_SECONDS, checks=checks)

        run()

    faults, count = [], 0
    for result in api.get_all_operations():
        assert isinstance(result, Ok), f"the document is wrong: {result}"
        operation = result.ok()
        count += 1
        try:
            fuzz(operation)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with one route, the others are tried as well
            faults.append(f"{operation.label}: {error}")
    assert not faults, f"{len(faults)} of {count} operations:\n" + "\n\n".join(faults)
    return count


def test_every_route_answers_as_documented() -> None:
    with LocalServer() as server:
        document = httpx.get(server.url + "/openapi.json").json()
        # WebSockets are left out: they are opened, not called.
        document["paths"] = {path: entry for path, entry in document["paths"].items() if "/ws/" not in path}
        assert attack(document, server.url) >= 20, "the document has lost its routes"


def test_what_is_documented_is_what_existing_resources_answer() -> None:
    with LocalServer() as server, httpx.Client(base_url=server.url) as client:
        document = client.get("/openapi.json").json()
        root = f"/v1/projects/{EXISTING['project']}"
        topic = f"projects/fuzz/topics/{EXISTING['topic']}"
        subscription = f"projects/fuzz/subscriptions/{EXISTING['subscription']}"
        for made in (
            client.put(f"/v1/{topic}"),
            client.put(f"/v1/{subscription}", json={"topic": topic}),
            client.put(f"{root}/snapshots/{EXISTING['snapshot']}", json={"subscription": subscription}),
            client.post(f"{root}/schemas?schemaId={EXISTING['schema']}", json={"type": "AVRO", "definition": AVRO}),
        ):
            assert made.status_code == 200
        kept = {}
        for path, entry in document["paths"].items():
            for verb in {"delete", "put"} & set(entry):
                del entry[verb]
            if not entry or not path.startswith("/v1/projects/") or path.endswith(":detach"):
                continue
            kept[path] = entry
            for operation in entry.values():
                for parameter in operation["parameters"]:
                    if parameter["in"] == "path":
                        parameter["schema"] = {"const": EXISTING[parameter["name"]]}
        document["paths"] = kept
        assert attack(document, server.url) > 30
