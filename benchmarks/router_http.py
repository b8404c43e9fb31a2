"""The router's HTTP client with 256 calls in flight, beside a bare protocol that has no pool and no timeouts, and beside aiohttp.

`python -m benchmarks.router_http penstock|bare|aiohttp URL NUMBER` measures one of them in a process of its own, and
`HTTP_1_1|HTTP_2 URL NUMBER CERTIFICATE` the client over TLS.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, cast, get_args

import uvloop

from benchmarks.router_target import router_target
from benchmarks.row import Benchmark, Row, Run, alternate, in_fresh_process, paired_ratio, spread

IN_FLIGHT = 256
WARM_UP = 2000
TIMEOUT = 900.0
TLS_GOAL = 110
"""Microseconds of processor time."""
BODY = b'{"messageId":"01K9Z3W5Q8V7R2M4N6P8T0X1YB"}'
TOKEN = b"Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n"

Send = Callable[[int], Awaitable[None]]
Version = Literal["HTTP_1_1", "HTTP_2"]

# Each gives a function that sends so many requests, IN_FLIGHT at a time: the next one is sent when an answer is there.


@asynccontextmanager
async def by_penstock(url: str, version: Version = "HTTP_1_1", certificate: str | None = None) -> AsyncIterator[Send]:
    from penstock.http.client.allowed_addresses import AllowedAddresses
    from penstock.http.client.client import HttpTransport
    from penstock.http.client.transport import Answer, Failure
    from penstock.router.options import RouterOptions

    tls = ssl.create_default_context(cafile=certificate) if certificate else None
    transport = HttpTransport(RouterOptions(http_version=version), AllowedAddresses(["127.0.0.1"]), tls=tls)
    post = transport.post

    async def send(number: int) -> None:
        finished = asyncio.get_running_loop().create_future()
        left, pending = number - IN_FLIGHT, number

        def done(found: Answer | Failure) -> None:
            nonlocal left, pending
            pending -= 1
            if type(found) is not Answer or found.status != 200:
                finished.set_exception(RuntimeError(f"a call failed: {found}"))
            elif left:
                left -= 1
                post(url, TOKEN, BODY, TIMEOUT, done)
            elif not pending:
                finished.set_result(None)

        for _ in range(IN_FLIGHT):
            post(url, TOKEN, BODY, TIMEOUT, done)
        await finished

    yield send
    await transport.close()


@asynccontextmanager
async def by_bare(url: str) -> AsyncIterator[Send]:
    """One connection for each call in flight; what an answer says is parsed, and nothing is done with it."""
    from httptools import HttpResponseParser

    from penstock.http.client.target import parse_target

    target, loop = parse_target(url), asyncio.get_running_loop()
    request = b"%b%d\r\n%b\r\n%b" % (target.head, len(BODY), TOKEN, BODY)
    left = pending = 0
    finished = loop.create_future()

    class Bare(asyncio.Protocol):
        def __init__(self) -> None:
            self.data_received = HttpResponseParser(self).feed_data  # type: ignore[method-assign]  # there is no less

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.write = cast("asyncio.Transport", transport).write  # uvloop's own class has the same methods

        def on_message_complete(self) -> None:
            nonlocal left, pending
            pending -= 1
            if left:
                left -= 1
                self.write(request)
            elif not pending:
                finished.set_result(None)

    made = [await loop.create_connection(Bare, target.host, target.port) for _ in range(IN_FLIGHT)]

    async def send(number: int) -> None:
        nonlocal left, pending, finished
        left, pending, finished = number - IN_FLIGHT, number, loop.create_future()
        for _, protocol in made:
            protocol.write(request)
        await finished

    yield send
    for transport, _ in made:
        transport.abort()


@asynccontextmanager
async def by_aiohttp(url: str) -> AsyncIterator[Send]:
    import aiohttp

    headers = {"Authorization": TOKEN.decode().partition(": ")[2].strip(), "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)

    async def send(number: int) -> None:
        left = number

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                async with session.post(url, data=BODY, headers=headers) as answer:
                    await answer.read()

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))

    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(TIMEOUT)) as session:
        yield send


CLIENTS: dict[str, Callable[[str], AbstractAsyncContextManager[Send]]] = {
    "penstock": by_penstock,
    "bare": by_bare,
    "aiohttp": by_aiohttp,
}


def router_http(run: Run) -> Iterator[Row]:
    number, rounds = run.of(100_000, 20_000), run.of(5, 3)
    cpu: dict[str, list[float]] = {name: [] for name in CLIENTS}

    def measured(name: str, url: str) -> float:
        # aiohttp is several times slower: a smaller number takes as long and shows the same.
        count = number // 8 if name == "aiohttp" else number
        found = in_fresh_process("benchmarks.router_http", name, url, count)
        cpu[name].append(found["client_us"])
        return found["rate"]

    with router_target("ack") as target:
        rates = alternate(rounds, {name: lambda name=name: measured(name, target.url) for name in CLIENTS})  # type: ignore[misc]
        expected = rounds * (2 * number + number // 8 + 3 * WARM_UP)
        assert target.count() == expected, "every request arrived once"
    yield Row(
        "router_http",
        f"router's HTTP client, {IN_FLIGHT} calls in flight, one core, target of 0 ms",
        statistics.median(rates["penstock"]),
        "calls/s",
        statistics.median(rates["bare"]),
        "a bare protocol: no pool, no timeout, no answer",
        paired_ratio(rates["penstock"], rates["bare"]),
        "≥ 0.6 of the bare protocol",
        paired_ratio(rates["penstock"], rates["bare"]) >= 0.6,
        spread(rates["penstock"]),
    )
    yield Row(
        "router_http_cpu",
        "its processor time for a call",
        statistics.median(cpu["penstock"]),
        "us",
        statistics.median(cpu["bare"]),
        "the bare protocol's",
        paired_ratio(cpu["penstock"], cpu["bare"]),
        "",
        None,
        spread(cpu["penstock"]),
    )
    yield Row(
        "router_http_aiohttp",
        "its processor time beside that of a full client",
        statistics.median(cpu["penstock"]),
        "us",
        statistics.median(cpu["aiohttp"]),
        "aiohttp's",
        paired_ratio(cpu["penstock"], cpu["aiohttp"]),
        "",
        None,
        spread(cpu["penstock"]),
        f"aiohttp: {statistics.median(rates['aiohttp']):,.0f} calls/s",
    )


def router_tls(run: Run) -> Iterator[Row]:
    number, rounds = run.of(40_000, 10_000), run.of(5, 3)
    with router_target("empty", tls=run.directory("tls")) as target:
        found: dict[Version, list[dict[str, float]]] = {version: [] for version in get_args(Version)}
        for _ in range(rounds):
            for version, figures in found.items():
                figures.append(in_fresh_process("benchmarks.router_http", version, target.url, number, target.certificate))
    for version, figures in found.items():
        cost = [each["client_us"] for each in figures]
        rate = statistics.median(each["rate"] for each in figures)
        yield Row(
            f"router_tls_{version.lower()}",
            f"processor time of a call over TLS, {version.replace('_', '/', 1).replace('_', '.')}, {IN_FLIGHT} in flight",
            statistics.median(cost),
            "us",
            None,
            "",
            None,
            f"≤ {TLS_GOAL:g} µs",
            statistics.median(cost) <= TLS_GOAL,
            spread(cost),
            f"{rate:,.0f} calls/s",
        )


BENCHMARKS: dict[str, Benchmark] = {"router-http": router_http, "router-tls": router_tls}


async def measure(name: str, url: str, number: int, certificate: str = "") -> dict[str, float]:
    async with by_penstock(url, cast("Version", name), certificate) if certificate else CLIENTS[name](url) as send:
        await send(WARM_UP)  # everything is imported and connected
        own, start = time.process_time(), time.perf_counter()
        await send(number)
        return {"rate": number / (time.perf_counter() - start), "client_us": (time.process_time() - own) / number * 1e6}


def main() -> None:
    name, url, number, *certificate = sys.argv[1:]
    print(json.dumps(uvloop.run(measure(name, url, int(number), *certificate))))


if __name__ == "__main__":
    main()
