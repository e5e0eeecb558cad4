"""Spark clusters on this machine for jobs: master, workers and executors in processes of their own, all on loopback.

Spark's master `local-cluster` starts real executors as children of the driver's JVM, with that JVM. What they write
goes to a folder of the test. Needs Java and pyspark.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import psutil

from support.launcher import command_of

EXECUTOR = "--executor-id"
# Small and quick to start: a machine for tests has few cores.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={folder}"
PARTS = ("bin", "jars", "python")  # of a Spark installation


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
