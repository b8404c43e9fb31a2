"""`penstock publish`: messages from the command line, a file or the standard input to a topic."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import penstock
from penstock.cli.arguments import pair, whole
from penstock.cli.command import Parser
from penstock.cli.input import add_source, check_source, publish_all
from penstock.cli.session import add_target
from penstock.cli.session import run as run_with_client

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub


def configure(parser: Parser) -> None:
    """Add the topic, the data, and the options of all messages."""
    parser.add_argument("topic", metavar="TOPIC")
    add_source(parser)
    parser.add_argument(
        "--attribute",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an attribute of every message; repeat it for several",
    )
    parser.add_argument("--key", default="", metavar="KEY", help="the ordering key of every message")
    parser.add_argument("--priority", type=whole(0, 9), metavar="N", help="0 to 9, 9 is delivered first (default: 5)")
    add_target(parser)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Check before connecting: an invalid call opens nothing."""
    check_source(found)

    async def work(pubsub: PubSub) -> int:
        topic = pubsub.topic(found.topic)
        attributes = dict(found.attribute)
        more = {} if found.priority is None else {"priority": found.priority}

        async def send(batch: list[bytes]) -> list[str]:
            return await topic.publish_many([penstock.Message(data, attributes, found.key, **more) for data in batch])

        return await publish_all(found, send, in_order=bool(found.key))

    return run_with_client(found, work, is_heavy=True)
