"""A Spark application of a job's own: its driver is a JVM that this process starts, and that ends with it.

The JVM ends when its standard input closes. This process holds the other end, so the JVM ends with it, even if it is
killed. Spark's log goes to a file without a name, never to the screen. If Spark fails, the error quotes the log's last
lines. Properties reach the JVM in a file without a name too, never on a command line: some are secrets.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from shoal.engines.spark import texts
from shoal.environment import inherited, spark_submit_with
from shoal.errors import UsageError, printable

# Unless the user has set them.
DEFAULTS = {
    "spark.app.name": "shoal",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}
# Values that spark-submit uses when nothing is set.
ASSUMED = {"spark.master": "local[*]", "spark.app.name": "pyspark-shell", "spark.ui.showConsoleProgress": "true"}
END_SECONDS = 10.0  # that the JVM may take to end
REACH_SECONDS = 5.0  # for a standalone master to take a connection
STANDALONE = re.compile(r"spark://(?P<host>[^:/,]+|\[[^\]]+\]):(?P<port>\d+)$")
SAYS_WHY = re.compile(r"(Exception|Error|ERROR)\b.*: ")


def check_java() -> None:
    """Raises `UsageError` where there is none that Spark would find."""
    home = inherited({}).get("JAVA_HOME", "")
    if not (shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")):
        raise UsageError(texts.no_java(home))


def check_master(master: str) -> None:
    """Raises `UsageError` if a standalone master takes no connection. Spark itself would try for a minute."""
    if (found := STANDALONE.fullmatch(master)) is None:
        return
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), REACH_SECONDS).close()
    except OSError as error:
        raise UsageError(texts.no_spark_master_there(master, error.strerror or error)) from None


class OwnApplication:
    def __init__(self, settings: Mapping[str, str]) -> None:
        """`settings` are Spark's properties, besides those of spark-defaults.conf. Raises `UsageError`."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with this object
        self._gateway: Any = None  # py4j has no types
        self._context: SparkContext | None = None
        try:
            with _own_handler(), warnings.catch_warnings(action="ignore"):  # pyspark's, about its own packages
                self._start(settings)
        except BaseException as error:
            said = self._last_words(error)
            self.close()
            if isinstance(error, UsageError) or not isinstance(error, Exception):
                raise
            raise UsageError(texts.no_spark_application(said)) from None

    @property
    def context(self) -> SparkContext:
        assert self._context is not None
        return self._context

    def _start(self, settings: Mapping[str, str]) -> None:
        if SparkContext._gateway is None:
            self._gateway = _started_jvm(settings, self._log)
        gateway: Any = self._gateway or SparkContext._gateway
        whole = _completed(settings, gateway.jvm.SparkConf(True))
        if "spark.master" not in settings:
            check_master(whole["spark.master"])
        self._context = SparkContext(conf=SparkConf(_jvm=gateway.jvm).setAll(list(whole.items())), gateway=gateway)
        if "PYSPARK_PYTHON" not in inherited({}):
            self._context.pythonExec = sys.executable

    def close(self) -> None:
        """End the application, and the JVM if it was started for it. Safe to call twice."""
        context, self._context = self._context, None
        if context is not None:
            with contextlib.suppress(Exception):  # whatever py4j raises where the JVM is gone
                context.stop()
        gateway, self._gateway = self._gateway, None
        if gateway is not None and gateway.proc is not None:  # None: spark-submit has started this process
            _end_jvm(gateway)
        self._log.close()

    def _last_words(self, error: BaseException) -> str:
        self._log.seek(0)
        lines = [*str(error).splitlines(), *self._log.read().decode("utf-8", "replace").splitlines()]
        telling = [line for line in lines if SAYS_WHY.search(line)]
        return printable((telling or lines or ["nothing"])[-1].strip())


def _completed(settings: Mapping[str, str], known: Any) -> dict[str, str]:
    """The user's properties, with our defaults for those that neither the user nor spark-defaults.conf sets.

    `known` is what Spark has read.
    """

    def is_open(name: str) -> bool:
        return name not in settings and (not known.contains(name) or known.get(name) == ASSUMED.get(name))

    if is_open("spark.master"):
        raise UsageError(texts.NO_SPARK_MASTER)
    added = {name: value for name, value in DEFAULTS.items() if is_open(name)}
    return {"spark.master": str(known.get("spark.master")), **added, **settings}


def _started_jvm(settings: Mapping[str, str], log: IO[bytes]) -> Any:
    """Pyspark's connection to a new JVM. The file with the properties is open in this process's children alone."""
    with os.fdopen(os.memfd_create("spark-properties"), "wb") as file:
        file.write(properties_file(settings))
        file.flush()
        number = file.fileno()
        options: dict[str, Any] = {"stdout": log, "stderr": log, "start_new_session": True, "pass_fds": (number,)}
        # Without the first option, the file would stand in for spark-defaults.conf.
        with spark_submit_with(f"--load-spark-defaults --properties-file /proc/self/fd/{number}"):
            return launch_gateway(popen_kwargs=options)  # type: ignore[no-untyped-call]


def properties_file(settings: Mapping[str, str]) -> bytes:
    """In Java's format. Whatever is no ASCII letter or digit is written as a code, so that it has no meaning there."""
    return "".join(f"{_coded(name)}={_coded(value)}\n" for name, value in settings.items()).encode("ascii")


def _coded(text: str) -> str:
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    plain = (chr(unit) for unit in units)
    return "".join(one if one.isascii() and one.isalnum() else f"\\u{ord(one):04x}" for one in plain)


def _end_jvm(gateway: Any) -> None:
    with contextlib.suppress(Exception):  # as above
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # else the next context would talk to a JVM that has ended
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


@contextlib.contextmanager
def _own_handler() -> Iterator[None]:
    """Spark sets a handler for Ctrl-C, which is the launcher's to handle."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
