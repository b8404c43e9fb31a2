"""A Spark session without setup: the right Python, enough memory, loopback if everything is local, and no noise in the log.

`session("my job")` is all that a job or a notebook needs. `conf` and the options of `spark-submit` take precedence.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.errors import FailedPrecondition, InvalidArgument, Unavailable
from penstock.extras import how_to_install
from penstock.pipeline.failure import as_penstock_error
from penstock.pipeline.java import check_java
from penstock.pipeline.priority import lower_own, lower_session_of, spare_cores

if TYPE_CHECKING:
    from typing import TypeAlias

    from pyspark.sql import SparkSession

    Spark: TypeAlias = SparkSession
    """For modules that must not import pyspark themselves."""

INSTALL = how_to_install("spark")
PACKAGES: dict[str, tuple[tuple[int, ...], tuple[int, ...], str]] = {
    "pyspark": ((4, 2), (5,), "from 4.2 up to 5"),
    "pyarrow": ((18,), (1_000,), "18 or newer"),
    "deltalake": ((1, 6), (2,), "from 1.6 up to 2"),
    "pandas": ((2, 2), (3,), "from 2.2 up to 3, which PySpark does not know"),
}
"""The oldest supported version, and the first version that is too new."""
GIB = 1 << 30
CONNECT_PORT, MASTER_PORT, PATIENCE_SECONDS = 15002, 7077, 3.0
_MEMORY = re.compile(r"[1-9][0-9]{0,9}[kmgt]", re.ASCII | re.IGNORECASE)

EVERYWHERE = {"spark.sql.session.timeZone": "UTC"}
"""Settings for every session, including existing ones."""

STARTED = {
    "spark.ui.showConsoleProgress": "false",  # it would be drawn over the progress of the job
    # No checksum file beside each checkpoint file on a local disk, for which Java starts two more processes (chmod): measured, a
    # small batch takes 90 ms instead of 160. Spark's own checksums stay; other file systems are not affected.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
"""Settings that only have an effect when Spark starts."""

ALONE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",  # the default is 200, and most would be empty on one machine
}
"""Settings for a Spark that runs only on this machine."""

SERVER_SETTINGS = {"spark.penstock.endpoint": "PENSTOCK_SERVER", "spark.penstock.token": "PENSTOCK_TOKEN"}
"""Settings of a session with the default server for reads and writes, and the environment variables with the same meaning."""

NOISE = b"WARNING: Using incubator modules"
_TELLING = re.compile(r"^(?:Exception in thread \"main\" [\w.$]+: |Error: |Error occurred during |Caused by: [\w.$]+: )")


def session(
    app: str,
    *,
    master: str | None = None,
    remote: str | None = None,
    driver_memory: str | None = None,
    conf: Mapping[str, str] | None = None,
    background: bool = False,
) -> SparkSession:
    """A session: in this process (`local[*]`, or the cluster of `master`), or at a Spark Connect server (`remote`).

    With `background`, other programs of this machine, such as a server, come first: this thread and the Spark that it starts have
    a lower priority, and one processor is left unused unless `master` has a number.
    An existing session of this process is returned; of `conf`, only settings that may change at run time are applied to it.
    Raises FailedPrecondition, with a hint, if Java or a package is missing or too old.
    """
    check_packages()
    if driver_memory is not None and not _MEMORY.fullmatch(driver_memory):
        raise InvalidArgument.of("driver_memory", driver_memory, "a size such as 512m or 4g")
    given = dict(conf or {})
    if remote is not None:
        if master is not None:
            raise InvalidArgument.of("remote", remote, "none beside a master", hint="leave out one of the two")
        check_remote(remote)
        with as_penstock_error():
            return _connected(app, remote, given)
    from pyspark.sql import SparkSession  # noqa: PLC0415  # checked above, so that a missing one gives a readable error

    if SparkSession.getActiveSession() is None:
        with as_penstock_error():
            _launch(app, _settings(master, driver_memory, _submitted() | given, background=background), background=background)
    found = SparkSession.builder.getOrCreate()
    for name, value in (EVERYWHERE | given).items():
        if found.conf.isModifiable(name):
            found.conf.set(name, value)
    _register(found, given)
    return found


def has_session() -> bool:
    """Whether this process already has a session."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark.sql import SparkSession  # noqa: PLC0415

    return SparkSession.getActiveSession() is not None


def ui_address(spark: SparkSession) -> str | None:
    """The address of Spark's web UI; None if there is none, or Spark runs elsewhere."""
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    return None if context is None else context.uiWebUrl or None


def is_alone(master: str) -> bool:
    """Whether a master is on this machine, so that no other machine has to reach the driver."""
    if master == "local" or master.startswith(("local[", "local-cluster[")):
        return True
    if not master.startswith("spark://"):
        return False  # for other kinds of clusters, the location of the machines is unknown
    host = urlsplit(master).hostname or ""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def check_remote(remote: str) -> None:
    """Raise unless a server listens at the address of a Spark Connect server: Spark itself would try for ten minutes.

    For `local[…]`, Spark starts its own server on this machine.
    """
    if remote == "local" or remote.startswith("local["):
        return
    address = urlsplit(remote)
    if address.scheme != "sc" or not address.hostname:
        raise InvalidArgument.of("remote", remote, "the address of a Spark Connect server, such as sc://127.0.0.1:15002")
    _check_listener(remote, "Spark Connect server", CONNECT_PORT)


def check_master(master: str) -> None:
    """If `master` is the address of a cluster, raise unless a server listens there: Spark itself would try for a minute."""
    if master.startswith("spark://") and "," not in master:  # with several masters, one is enough
        _check_listener(master, "Spark master", MASTER_PORT)


def _check_listener(url: str, what: str, port: int) -> None:
    try:
        address = urlsplit(url)
        socket.create_connection((address.hostname or "", address.port or port), PATIENCE_SECONDS).close()
    except (OSError, ValueError) as error:
        raise Unavailable(f"no {what} at {url}: {error}", hint="start one, or look for a typing error") from None


def check_packages() -> None:
    """Raise FailedPrecondition if a package is missing, or its version is not supported."""
    for name, (oldest, too_new, wanted) in PACKAGES.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            raise FailedPrecondition(f"the pipeline needs {name}, which is not installed", hint=INSTALL) from None
        if not oldest <= _numbers(found) < too_new:
            raise FailedPrecondition(f"the pipeline needs {name} {wanted}, and {found} is installed", hint=INSTALL)


def _numbers(text: str) -> tuple[int, ...]:
    """The comparable part of a version: (4, 3) for 4.3.0.dev1."""
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


def memory_for(total: int) -> str:
    """The driver's memory on a machine with `total` bytes: a quarter, from 1 to 4 GiB. Locally the driver does all the work."""
    return f"{min(max(total // 4, GIB), 4 * GIB) // (1 << 20)}m"


def _submitted() -> dict[str, str]:
    """The options of `spark-submit`, including `--master`, if it runs this process. It has already started Java then."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415

    SparkContext._ensure_initialized()
    return dict(SparkConf(_jvm=SparkContext._jvm).getAll())


def _settings(master: str | None, driver_memory: str | None, given: dict[str, str], *, background: bool) -> dict[str, str]:
    master = master or given.get("spark.master") or (f"local[{spare_cores()}]" if background else "local[*]")
    settings = {"spark.master": master, **EVERYWHERE, **STARTED}
    if is_alone(master):
        settings |= ALONE
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):  # workers with another Python version never connect
            os.environ.setdefault(name, sys.executable)
    settings["spark.driver.memory"] = driver_memory or memory_for(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    quiet = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    options = given.pop("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = options if "log4j2.configurationFile" in options else f"{quiet} {options}".strip()
    return settings | given


def _launch(app: str, settings: dict[str, str], *, background: bool) -> None:
    """Start Java and the Spark context of this process."""
    check_java()
    check_master(settings["spark.master"])
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
    from pyspark.logger import PySparkLogger  # noqa: PLC0415

    # PySpark also writes each error that it raises to the standard error, with the Java stack trace, as one line of JSON.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)

    conf = SparkConf(loadDefaults=False).setAppName(app).setAll(list(settings.items()))
    if SparkContext._gateway is not None:  # a context was stopped in this process: reuse its Java
        SparkContext(conf=conf)
        return
    if background:
        lower_own()
    source, heard = os.pipe()
    voice = JavaOutput(source)
    try:
        # In its own process session: Ctrl-C at the terminal only goes to this process, which then stops Spark and its workers.
        gateway = launch_gateway(conf, {"stderr": heard, "start_new_session": True})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError:
        os.close(heard)
        raise FailedPrecondition(f"Spark's Java did not start: {voice.last_lines()}") from None
    os.close(heard)
    voice.pass_on()
    if background:
        lower_session_of(gateway.proc.pid)
    SparkContext(conf=conf, gateway=gateway)


class JavaOutput:
    """The standard error of Java: buffered until Java has started, passed through afterwards, without the usual warnings."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._kept: list[bytes] = []
        self._lock = threading.Lock()
        self._is_passed_on = False
        self._thread = threading.Thread(target=self._listen, name="spark-stderr", daemon=True)
        self._thread.start()

    def pass_on(self) -> None:
        """Write the buffered lines, and all further ones."""
        with self._lock:
            self._is_passed_on = True
            os.write(2, b"".join(self._kept))

    def last_lines(self) -> str:
        """Why Java ended: the first line that names an exception or an error, or the last line."""
        self._thread.join()
        lines = [line.decode(errors="replace").strip() for line in self._kept if not line.startswith(b"\tat ")]
        telling = [line for line in lines if _TELLING.search(line)]
        return _TELLING.sub("", (telling or lines[-1:] or ["it said nothing"])[0])

    def _listen(self) -> None:
        with os.fdopen(self._source, "rb") as lines:
            for line in lines:
                if line.startswith(NOISE):
                    continue
                with self._lock:
                    if self._is_passed_on:
                        os.write(2, line)
                    else:
                        self._kept.append(line)


def _register(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Register the data source. Spark finds it anyway, but on a cluster it passes `--py-files` only to registered sources.

    Its environment must be a concurrent map. Each stream puts the same settings into it when it starts, and two that start at the
    same time corrupt the HashMap that Spark would create: after that, no task can be read (OptionalDataException).
    Spark does not pass its settings to data sources, only the environment, so the settings of the server are put there.
    """
    from penstock.pipeline.source import PenstockDataSource  # noqa: PLC0415  # it imports pyspark

    context = spark.sparkContext
    environment = context.environment
    assert context._jvm is not None, "it has started"
    server = {name: settings.get(setting) or spark.conf.get(setting, None) for setting, name in SERVER_SETTINGS.items()}
    named = {name: value for name, value in server.items() if value}
    context.environment = context._jvm.java.util.concurrent.ConcurrentHashMap(environment | named)
    try:
        spark.dataSource.register(PenstockDataSource)
    finally:
        context.environment = environment


def _connected(app: str, remote: str, given: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    spark: SparkSession = SparkSession.builder.appName(app).remote(remote).getOrCreate()
    for name, value in (EVERYWHERE | given).items():
        spark.conf.set(name, value)
    return spark
