"""Jobs make the topics that they publish to."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import MessageQueue
from penstock.access import Keyring, Verb
from penstock.clock import SystemClock
from penstock.errors import PermissionDenied
from penstock.pipeline.job import Target
from penstock.pipeline.own_topics import log_with_topic
from penstock.pipeline.schemas import METRICS_STREAM
from penstock.testing.server import LocalServer

pytestmark = pytest.mark.alone


def make_topic(target: Target) -> None:
    with log_with_topic(target, METRICS_STREAM):
        pass


@pytest.mark.parametrize(("project", "name"), [(None, METRICS_STREAM), ("shop", f"shop/{METRICS_STREAM}")])
def test_a_topic_is_made_once(project: str | None, name: str) -> None:
    with LocalServer() as server:
        for _ in range(2):
            make_topic(Target(endpoint=f"{server.url}/", project=project))

        assert set(server.broker.catalog.topics) == {name}


def test_who_may_not_make_it_can_use_one_that_is_there(tmp_path: Path) -> None:
    reader = Keyring(tmp_path / "tokens").create("reader", SystemClock().now(), verbs=[Verb.READ])
    with LocalServer(auth="token", token_file=tmp_path / "tokens") as server:
        target = Target(endpoint=server.url, token=reader)
        with pytest.raises(PermissionDenied, match=f"may not manage topic {METRICS_STREAM}"):
            make_topic(target)
        MessageQueue(broker=server.broker).register_topic(METRICS_STREAM)
        make_topic(target)
