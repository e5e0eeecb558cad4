"""Spark clusters on this machine for jobs: master, workers and executors in processes of their own, all on loopback.

Spark's master `local-cluster` starts real executors as children of the driver's JVM, with that JVM. `SparkCluster` is a
standalone cluster, whose master and workers are programs of their own, as on several machines. What they write goes to
a folder of the test. Needs Java and pyspark.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from shoal.events import AnyEvent, StepsApplied, WorkerEquipped
from support.launcher import PATIENCE, command_of, events_in

EXECUTOR = "--executor-id"
# Small and quick to start: a machine for tests has few cores.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={folder}"
PARTS = ("bin", "jars", "python")  # of a Spark installation
HOST = "127.0.0.1"
SOON = 15.0  # seconds in which nothing of a killed launcher is left
WITH_US = ("setpriv", "--pdeathsig", "KILL")  # what follows is killed if this process is


def is_installed() -> bool:
    return shutil.which("java") is not None and importlib.util.find_spec("pyspark") is not None


def cluster_properties(executors: int = 2, *, cores: int = 1) -> str:
    """For `--spark`: so many executors, each with so many cores."""
    return f"master=local-cluster[{executors},{cores},1024] executor.memory=512m"


def spark_variables(folder: Path) -> dict[str, str]:
    """What a driver needs so that all its files are in `folder`, and its traffic stays on this machine."""
    home, scratch = folder / "spark-home", folder / "spark-scratch"
    home.mkdir(exist_ok=True)  # executors work in a folder of it
    scratch.mkdir(exist_ok=True)
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    for part in PARTS:
        link = home / part
        if not link.exists():
            link.symlink_to(Path(spec.origin).parent / part)
    return {
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(home),  # empty
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(scratch),
        "JAVA_TOOL_OPTIONS": JAVA.format(folder=scratch),
    }


def executors_of(driver: int) -> dict[str, psutil.Process]:
    """Those of the Spark application that process `driver` has started, by Spark's number."""
    found = {}
    for process in psutil.Process(driver).children(recursive=True):
        command = command_of(process)
        if EXECUTOR in command and "java" in command[0]:
            found[command[command.index(EXECUTOR) + 1]] = process
    return found


def processes_below(folder: Path) -> list[psutil.Process]:
    """Executors, and whatever runs in their folders."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd().startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def until_steps(run_dir: Path, worker: int, launcher: subprocess.Popen[str]) -> None:
    """Wait until a worker has taken steps."""
    limit = time.monotonic() + 3 * PATIENCE
    while not any(isinstance(one, StepsApplied) and one.worker == worker for one in events_in(run_dir)):
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < limit, events_in(run_dir)
        time.sleep(0.1)


def nodes_of(events: list[AnyEvent]) -> dict[int, str]:
    """By worker."""
    return {event.worker: event.node for event in events if isinstance(event, WorkerEquipped)}


class SparkCluster:
    """A standalone master, and workers that a test adds: each has one core, so it runs one executor with one task."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cluster"  # executors work below it
        self.folder.mkdir()
        self._variables = {**os.environ, **spark_variables(folder)}
        self._programs: dict[str, subprocess.Popen[bytes]] = {}  # by name
        with socket.socket() as free:
            free.bind((HOST, 0))
            self._port = free.getsockname()[1]
        try:
            self._start("master", "master.Master", "--host", HOST, "--port", str(self._port), "--webui-port", "0")
            self._wait("master", "New state: ALIVE")
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """As in `--spark master=...`."""
        return f"spark://{HOST}:{self._port}"

    @contextlib.contextmanager
    def worker(self, name: str) -> Iterator[None]:
        """One more, which the master has registered when the block begins; it ends with the block."""
        room = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name))
        self._start(name, "worker.Worker", "--host", HOST, "--webui-port", "0", *room, self.address)
        try:
            self._wait(name, "Successfully registered with master")
            yield
        finally:
            self._end(name)

    def close(self) -> None:
        for name in tuple(self._programs):
            self._end(name)

    def _end(self, name: str) -> None:
        """A worker ends its executors when it is told to end."""
        program = self._programs.pop(name)
        program.terminate()
        try:
            program.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()

    def _start(self, name: str, service: str, *options: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            spark_class = Path(self._variables["SPARK_HOME"], "bin", "spark-class")
            self._programs[name] = subprocess.Popen(
                [*WITH_US, spark_class, f"org.apache.spark.deploy.{service}", *options],
                cwd="/",
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait(self, name: str, words: str) -> None:
        """Until a program says this in its log."""
        log = self.folder / f"{name}.log"
        limit = time.monotonic() + 2 * PATIENCE
        while words not in (said := log.read_text(errors="replace")):
            assert self._programs[name].poll() is None, said
            assert time.monotonic() < limit, said
            time.sleep(0.1)


@contextlib.contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """With one worker."""
    with contextlib.closing(SparkCluster(folder)) as cluster, cluster.worker("first"):
        yield cluster
