"""The script that checks imports and layout finds what it must, and nothing else."""

from scripts.check_layout import cycles, errors_in

MODULES = frozenset({"penstock.errors", "penstock.broker.core", "penstock.broker.core.queue", "penstock.journal"})
FORBIDDEN = [
    ("penstock.broker.core.queue", "import time"),
    ("penstock.broker.core.queue", "import os.path"),
    ("penstock.broker.core.queue", "from random import Random"),
    ("penstock.broker.core.queue", "import threading"),
    ("penstock.broker.core.queue", "import asyncio"),
    ("penstock.broker.core.queue", "import logging"),
    ("penstock.broker.core.queue", "import sqlite3"),
    ("penstock.broker.core.queue", "import uuid, secrets"),
    ("penstock.broker.core.queue", "from sys import stdout"),
    ("penstock.broker.core.queue", "def f():\n    import socket"),
    ("penstock.broker.core.queue", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import io"),
    ("penstock.broker.core.queue", "from penstock.clock import Clock"),
    ("penstock.broker.core.queue", "from penstock.journal.journal import Journal"),
    ("penstock.broker.core.queue", "from penstock.broker import journals"),
    ("penstock.broker.core.queue", "from . import message"),
    ("penstock.broker.core.queue", "import attrs"),
    ("penstock.hub.core.session", "from penstock.broker.core.queue import Queue"),
    ("penstock.router.core.pool", "import random"),
    ("penstock.ids", "import secrets"),
    ("penstock.errors", "import logging"),
    ("penstock.clock", "from penstock.broker.core import queue"),
    ("penstock.broker.broker", "from penstock.hub.session import Session"),
    ("penstock.broker.broker", "import penstock.router.core.pool"),
    ("penstock.broker.broker", "from penstock import MessageQueue"),
    ("penstock.journal.sqlite", "from penstock.broker.broker import Broker"),
    ("penstock.router.router", "from penstock.broker.broker import Broker"),
    ("penstock.worker.worker", "from penstock.api.operations import Operations"),
    ("penstock.client.pubsub", "def f():\n    from penstock.broker.broker import Broker"),
    ("penstock.client.links.embedded", "from penstock.broker.broker import Broker"),
    ("penstock.client.links.remote", "from penstock.journal.core.events import Event"),
    ("penstock.client.links.remote", "from penstock.api.operations import Operations"),
    ("penstock.hub.service", "from penstock.broker.broker import Broker"),
    ("penstock.router.router", "import importlib\nimportlib.import_module('penstock.hub')"),
    ("penstock.broker.broker", "from penstock.testing import ManualClock"),
    ("penstock.broker.broker", "import apsw"),
    ("penstock.journal.memory", "import apsw"),
    ("penstock.broker.broker", "import pyarrow as pa"),
    ("penstock.journal.sqlite", "from pyarrow import Table"),
    ("penstock.broker.broker", "from rich.console import Console"),
    ("penstock.testing.simulator", "import pyspark"),
    ("penstock.testing.conformance", "import pyarrow"),
    ("penstock.client.stream", "from pyspark.sql import DataFrame"),
    ("penstock.pipeline.source", "from penstock.broker.broker import Broker"),
    ("penstock.broker.broker", "import requests"),
    ("penstock.hub.broker.feed", "from penstock.broker.core.stream import Stream"),
    ("penstock.log.writes", "def f():\n    from penstock.broker.core import queue"),
    ("penstock.log.server.scope", "with self.broker.lock:\n    pass"),
    ("penstock.router.sources.local", "with self._broker.present() as now:\n    pass"),
    ("penstock.hub.broker.topic_log", "self._broker.catalog.topics.get(name)"),
    ("penstock.api.feed", "from penstock.broker.core.queue import Queue"),
    ("penstock.google.push", "def f():\n    from penstock.broker.core import queue"),
    ("penstock.queue_api.commands", "with queues.broker.lock:\n    pass"),
    ("penstock.native.connection", "broker.catalog.topics"),
    ("penstock.api.message_queue", "with self.broker.present() as now:\n    pass"),
    ("penstock.newcomer", ""),
    ("penstock.broker.broker", "hint = \"pip install 'penstock[server]'\""),
    ("penstock.cli.serve", "f'install it: pip install {extra}'"),
    ("penstock.broker.core.queue", "open('x')"),
    ("penstock.broker.utils", ""),
    ("penstock.broker.lease_manager", ""),
]
ALLOWED = [
    ("penstock.broker.core.queue", "from __future__ import annotations"),
    ("penstock.broker.core.queue", "from collections.abc import Iterator\nimport heapq, msgspec"),
    ("penstock.broker.core.queue", "from sys import intern\nfrom datetime import datetime"),
    ("penstock.broker.core.queue", "from penstock import errors\nfrom penstock.values.message import Message"),
    ("penstock.broker.broker", "import threading\nfrom penstock.broker.core import queue\nfrom penstock.clock import Clock"),
    ("penstock.journal.sqlite", "import apsw"),
    ("penstock.journal.sqlite_writer", "import apsw"),
    ("penstock.log.arrow", "import pyarrow as pa"),
    ("penstock.api.message_queue", "from penstock.broker.broker import Broker"),
    ("penstock", "from penstock.api.message_queue import MessageQueue"),
    (
        "penstock.testing.simulator",
        "import apsw, random\nfrom penstock.testing.clock import ManualClock\nfrom penstock.hub.core import session",
    ),
    ("penstock.pipeline.jobs.route", "from pyspark.sql import DataFrame\nfrom penstock.router.core.routing import route"),
    ("pyspark_penstock", "from penstock.pipeline.source import PenstockSource as DefaultSource"),
    ("penstock.journal.sqlite", "open('x')"),
    ("penstock.api.queue_manager", ""),
    ("penstock.client.links.embedded", "import penstock\nfrom penstock.api.operations import Operations"),
    ("penstock.log.writes", "from penstock.broker import lookup\nwith self._lock:\n    lookup.find_topic(self._broker, name)"),
    ("penstock.broker.lookup", "from penstock.broker.core.queue import Queue\nwith broker.lock:\n    pass"),
]


def test_every_forbidden_module_is_found() -> None:
    assert [row for row in FORBIDDEN if not list(errors_in(*row, MODULES))] == []


def test_no_allowed_module_is_reported() -> None:
    assert [found for row in ALLOWED for found in errors_in(*row, MODULES)] == []


def test_the_packages_form_no_cycle() -> None:
    assert list(cycles()) == []
