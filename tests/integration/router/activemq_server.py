"""A real ActiveMQ (Debian's) with nothing but STOMP, with and without TLS, and the driver of the source's conformance suite."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, Self

from penstock.clock import SystemClock
from penstock.router.core.config import QueueConfig
from penstock.router.source import Source, SourceContext, open_source
from penstock.router.sources.activemq import ActiveMqSource
from penstock.router.sources.stomp import Frame, Login, StompConnection, escape, frame, headers, open_connection
from tests.conformance.sources.driver import Abilities
from tests.integration.router.certificate import STORE_PASSWORD, CertificateFiles
from tests.ports import free_port

HOME: Final = Path("/usr/share/activemq")
START_LIMIT: Final = 60.0
USER, PASSWORD = "router", "s3cret:with@signs"
LOGIN: Final = f"{USER}:{PASSWORD.replace('@', '%40')}"
"""User and password as they stand in an address."""

_CONF = """\
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans http://www.springframework.org/schema/beans/spring-beans-2.0.xsd
  http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
 <broker xmlns="http://activemq.apache.org/schema/core" useJmx="false" brokerName="penstock" dataDirectory="{data}"
   schedulerSupport="{scheduler}" useShutdownHook="false">
  <persistenceAdapter><kahaDB directory="{data}/kahadb" journalMaxFileLength="4mb"/></persistenceAdapter>
  <plugins>{plugins}</plugins>
  <sslContext><sslContext keyStore="file:{store}" keyStorePassword="{store_password}" keyStoreType="PKCS12"/></sslContext>
  <systemUsage><systemUsage>
   <memoryUsage><memoryUsage limit="64 mb"/></memoryUsage>
   <storeUsage><storeUsage limit="512 mb"/></storeUsage>
   <tempUsage><tempUsage limit="64 mb"/></tempUsage>
   <jobSchedulerUsage><jobSchedulerUsage limit="64 mb"/></jobSchedulerUsage>
  </systemUsage></systemUsage>
  <transportConnectors>
   <transportConnector name="stomp" uri="stomp://127.0.0.1:{port}"/>
   <transportConnector name="tls" uri="stomp+ssl://127.0.0.1:{tls_port}"/>
  </transportConnectors>
 </broker>
</beans>
"""
_LOGIN = (
    '<simpleAuthenticationPlugin anonymousAccessAllowed="false"><users>'
    '<authenticationUser username="{user}" password="{password}" groups="all"/>'
    '<authenticationUser username="reader" password="reader" groups="readers"/>'
    "</users></simpleAuthenticationPlugin>"
    "<authorizationPlugin><map><authorizationMap><authorizationEntries>"
    '<authorizationEntry queue=">" read="all" write="all" admin="all,readers"/>'
    '<authorizationEntry queue="read.>" read="all,readers" write="all" admin="all,readers"/>'
    '<authorizationEntry topic=">" read="all,readers" write="all,readers" admin="all,readers"/>'
    "</authorizationEntries></authorizationMap></map></authorizationPlugin>"
)


class ActiveMqServer:
    """One broker, its data in a folder; it may be killed and started again. Clients must log in."""

    def __init__(self, folder: Path, *, has_scheduler: bool = True) -> None:
        self.port = free_port()
        self.tls_port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "conf").mkdir(parents=True)
        files = CertificateFiles(folder)
        self.certificate = files.certificate
        (folder / "conf" / "activemq.xml").write_text(
            _CONF.format(
                data=folder / "data",
                port=self.port,
                tls_port=self.tls_port,
                scheduler=str(has_scheduler).lower(),
                plugins=_LOGIN.format(user=USER, password=PASSWORD),
                store=files.store,
                store_password=STORE_PASSWORD,
            )
        )

    def uri(self, queue: str) -> str:
        """The address of a queue, with the login of a user who may do everything."""
        return f"activemq://{LOGIN}@127.0.0.1:{self.port}/{queue}"

    def start(self) -> None:
        """Return when it answers; it may be running already."""
        if self._process is not None:
            return
        java = shutil.which("java")
        assert java is not None, "ActiveMQ needs Java"
        assert HOME.is_dir(), "install Debian's package activemq"
        folders = {"home": HOME, "base": self._folder, "conf": self._folder / "conf", "data": self._folder / "data"}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(java, "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
                    *(f"-Dactivemq.{name}={folder}" for name, folder in folders.items()),
                    *("-jar", str(HOME / "bin" / "activemq.jar"), "start", "xbean:activemq.xml"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )
        until = time.monotonic() + START_LIMIT
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"ActiveMQ did not start:\n{(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.settimeout(5)
                connection.sendall(
                    frame("CONNECT", {"accept-version": "1.2", "host": "test", "login": USER, "passcode": PASSWORD})
                )
                return connection.recv(20).startswith(b"CONNECTED")
        except OSError:
            return False

    def kill(self) -> None:
        """As a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def running(folder: Path, *, has_scheduler: bool = True) -> Iterator[ActiveMqServer]:
    server = ActiveMqServer(folder, has_scheduler=has_scheduler)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def source_of(uri: str) -> ActiveMqSource:
    context = SourceContext(environment={}, clock=SystemClock())
    source = open_source(QueueConfig("orders", uri), context)
    assert isinstance(source, ActiveMqSource)
    return source


class Client:
    """Reaches the server without the source: sends, and counts what is there."""

    def __init__(self, connection: StompConnection, browsed: list[Frame]) -> None:
        self._connection = connection
        self._browsed = browsed
        self._browses = count(1)

    @classmethod
    async def connect(cls, port: int) -> Self:
        browsed: list[Frame] = []
        login = Login(USER, PASSWORD)
        connection = await open_connection(
            "127.0.0.1", port, login=login, tls=None, on_messages=browsed.extend, on_lost=lambda _problem: None
        )
        return cls(connection, browsed)

    async def send(
        self, queue: str, bodies: Sequence[bytes], fields: Mapping[str, str] | None = None, *, is_text: bool = False
    ) -> None:
        """Returns when the server has them all."""
        confirmed = asyncio.get_running_loop().create_future()
        for number, body in enumerate(bodies, 1):
            given = {"destination": escape(f"/queue/{queue}"), "persistent": "true"}
            if not is_text:
                given["content-length"] = str(len(body))
            if number == len(bodies):
                given["receipt"] = self._connection.receipt(confirmed.set_result)
            for name, value in (fields or {}).items():
                given[escape(name)] = escape(value)
            self._connection.write(frame("SEND", given, body))
        async with asyncio.timeout(30):
            assert await confirmed is None

    async def left(self, queue: str) -> list[tuple[dict[str, str], bytes]]:
        """Everything in the queue, handed out or not."""
        name = f"browse{next(self._browses)}"
        self._browsed.clear()
        fields = {"id": name, "destination": escape(f"/queue/{queue}"), "browser": "true", "activemq.prefetchSize": "10000"}
        self._connection.write(frame("SUBSCRIBE", fields))
        async with asyncio.timeout(30):
            while not any("\nbrowser:end" in head for head, _ in self._browsed):  # noqa: ASYNC110  # a list has no event
                await asyncio.sleep(0.005)
        await self._connection.ask("UNSUBSCRIBE", {"id": name})
        return [(headers(head), body) for head, body in self._browsed if "\nbrowser:end" not in head]

    def close(self) -> None:
        self._connection.close()


class ActiveMqDriver:
    """For `tests.conformance.sources.checks`."""

    can = Abilities(has_leases=False)
    _queues = count(1)

    def __init__(self, server: ActiveMqServer) -> None:
        self._server = server
        self._queue = ""
        self._client: Client | None = None

    async def begin(self) -> None:
        self._queue = f"suite.{next(self._queues)}"
        self._client = await Client.connect(self._server.port)

    async def end(self) -> None:
        if self._client is not None:
            self._client.close()

    def open(self, lease_seconds: int) -> Source:
        return source_of(self._server.uri(self._queue))

    def open_elsewhere(self) -> Source:
        return source_of(f"activemq://127.0.0.1:{free_port()}/{self._queue}")

    async def crash(self, source: Source) -> None:
        assert isinstance(source, ActiveMqSource)
        break_connection(source)

    async def send(self, bodies: Sequence[bytes]) -> None:
        await self._reached().send(self._queue, bodies)

    async def left(self) -> int:
        return len(await self._reached().left(self._queue))

    async def stop_server(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def start_server(self) -> None:
        await asyncio.to_thread(self._server.start)
        self._client = await Client.connect(self._server.port)

    def _reached(self) -> Client:
        assert self._client is not None
        return self._client


def break_connection(source: ActiveMqSource) -> None:
    """As if its process were gone: no goodbye, and nothing that waits to be sent."""
    connection = source._connection
    assert connection is not None
    connection.abort("the test broke it")
