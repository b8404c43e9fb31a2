"""The topic of messages that say none."""

from __future__ import annotations

import pytest

from penstock.hub.core.rules import Binding


@pytest.mark.parametrize(
    ("pattern", "base"), [("orders/#", "orders"), ("shop/orders/#", "shop/orders"), ("orders", "orders"), ("#", "messages")]
)
def test_a_message_that_says_no_topic_has_the_beginning_of_the_pattern(pattern: str, base: str) -> None:
    assert Binding(pattern, "log").base == base
