"""Ten causes of dead letters whose texts, ids, times, hosts, payloads and versions differ from letter to letter."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

NAMES = "ann bob cem dana elif farid gwen hana igor jana kemal lena mona nils olga".split()


class Letter(NamedTuple):
    """A dead letter, and which cause it was made for."""

    cause: int
    queue: str
    reason: str
    error: str
    attributes: dict[str, str]
    payload: bytes


def letter(cause: int, draw: random.Random) -> Letter:
    """A letter of a cause."""
    number, host = draw.randrange(10**9), f"10.{draw.randrange(256)}.{draw.randrange(256)}.{draw.randrange(256)}"
    port, seconds, name = draw.randrange(1024, 65536), draw.uniform(0.1, 90), draw.choice(NAMES)
    instant = f"2026-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}T{draw.randrange(24):02}:00:{draw.randrange(60):02}.5Z"
    uuid, hexed = UUID(int=draw.getrandbits(128)), f"{draw.getrandbits(160):040x}"
    order: dict[str, object] = {"id": number, "customer": name, "amount": draw.random()}
    if draw.random() < 0.3:  # a field that some leave out
        order["note"] = "x"
    texts: list[Callable[[], tuple[str, str, str]]] = [
        lambda: ("orders", "max_retries_exceeded", f"connect to db{number % 7}.internal:{port} timed out after {seconds:.1f} s"),
        lambda: ("orders", "explicit_nack", f"KeyError: 'field_{number}'"),
        lambda: ("orders", "max_retries_exceeded", f"deadlock detected: process {number} waits for ShareLock on {hexed}"),
        lambda: ("hooks", "undeliverable", f"the target answered with status 404 at {instant}"),
        lambda: ("hooks", "undeliverable", "the target answered with status 422"),
        lambda: ("hooks", "max_attempts", f"POST https://{host}:{port}/v2/orders/{number}?token={hexed}: status 503"),
        lambda: ("hooks", "max_attempts", f"[Errno 111] Connection refused: {host}:{port} ({instant})"),
        lambda: ("mail", "explicit_nack", f"mailbox of {name} {draw.choice(NAMES)} is full (message {uuid})"),
        lambda: ("mail", "explicit_nack", f'template "{name}-{number}" has no language "{name[:2]}"'),
        lambda: ("mail", "explicit_nack", f"Traceback (most recent call last):\n  line {number}\nValueError: bad date {instant}"),
    ]
    queue, reason, error = texts[cause]()
    attributes = {"tenant": name}
    if queue == "hooks":
        attributes["router.target"] = "https://shop.example/hook"
    if cause == 1:
        attributes["code_version"] = f"1.{draw.randrange(2)}"
    if cause == 2:
        attributes["code_version"] = f"2.{draw.randrange(9)}"
    payload = json.dumps(order).encode() if queue != "mail" else json.dumps({"to": name, "lines": [{"n": 1}] * 2}).encode()
    return Letter(cause, queue, reason, error, attributes, payload)


def letters(count: int, seed: int) -> list[Letter]:
    """Letters of all ten, mixed; some causes are a hundred times as frequent as others."""
    draw = random.Random(seed)
    weights = [100, 50, 30, 20, 20, 10, 5, 20, 2, 1]
    return [letter(cause, draw) for cause in draw.choices(range(10), weights, k=count)]
