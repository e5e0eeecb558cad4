"""What goes wrong with `--on spark` before a job starts: one line each, with a real Spark, and nothing is left."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.engines import texts as node_texts
from shoal.engines.spark import texts
from support.launcher import PATIENCE, shoal
from support.spark_cluster import is_installed, spark_variables

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not is_installed(), reason="needs Java and pyspark"),
]

ONE_CORE = "master=local[1]"  # a single JVM, in which one task runs at a time
SLOW = re.compile(r"shoal: (starting|reaching|still) ")  # what a slow machine is told meanwhile
# A job whose workers find fewer slots than they need, with little patience.
NO_ROOM = """
import contextlib
from shoal.engines.nodes.node_engine import NodeEngine, NodeEngineConfig
from shoal.engines.spark import texts
from shoal.engines.spark.own_application import OwnApplication
from shoal.engines.spark.spark_provider import SparkProvider
from shoal.errors import UsageError
from shoal.values import Address

application = OwnApplication({"spark.master": "local[1]"})
config = NodeEngineConfig(Address("127.0.0.1", 0), more_room=texts.MORE_EXECUTORS)
with contextlib.closing(NodeEngine(config, SparkProvider(application.context, 2, application.close))) as engine:
    engine.gather(1)
    try:
        engine.gather(2, seconds=1.0)
    except UsageError as error:
        print(error)
"""


def refused(folder: Path, properties: str, *, workers: int = 1, **variables: str) -> str:
    """The only line that the command says; it ends with 2, and leaves nothing."""
    (folder / "script.py").write_text("print(1)\n")
    job = ("run", "--on", "spark", "--spark", properties, "-n", str(workers), "script.py")
    found = shoal(folder, *job, variables={**spark_variables(folder), **variables}, patience=2 * PATIENCE)
    assert found.code == 2, found
    assert not (folder / "runs").exists()
    lines = [line for line in found.stderr.splitlines() if not SLOW.match(line)]
    assert len(lines) == 1, found.stderr
    return lines[0].removeprefix("shoal: error: ")


def test_without_java(tmp_path: Path) -> None:
    assert refused(tmp_path, ONE_CORE, PATH=str(tmp_path), JAVA_HOME="") == texts.no_java("")
    assert refused(tmp_path, ONE_CORE, JAVA_HOME="/nowhere") == texts.no_java("/nowhere")


def test_a_master_that_does_not_answer(tmp_path: Path) -> None:
    master = "spark://127.0.0.1:1"
    assert refused(tmp_path, f"master={master}") == texts.no_spark_master_there(master, "Connection refused")


def test_no_cluster_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path, "executor.memory=512m") == texts.NO_SPARK_MASTER


def test_a_master_of_spark_defaults_is_used(tmp_path: Path) -> None:
    home = Path(spark_variables(tmp_path)["SPARK_HOME"])
    (home / "spark-defaults.conf").write_text("spark.master spark://127.0.0.1:1\n")
    said = refused(tmp_path, "executor.memory=512m")
    assert said == texts.no_spark_master_there("spark://127.0.0.1:1", "Connection refused")


def test_an_application_that_spark_refuses_is_quoted(tmp_path: Path) -> None:
    said = refused(tmp_path, f"{ONE_CORE} task.cpus=many")
    assert said.startswith(texts.no_spark_application("")), said
    assert "spark.task.cpus" in said
    assert "many" in said


def test_executors_without_this_python_or_without_shoal(tmp_path: Path) -> None:
    assert refused(tmp_path, ONE_CORE, PYSPARK_PYTHON="/no/python") == texts.no_python_in_executor("/no/python")
    bare = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    said = refused(tmp_path, ONE_CORE, PYSPARK_PYTHON=str(bare))
    assert said == texts.no_shoal_in_executor("ModuleNotFoundError: No module named 'shoal'")


def test_fewer_cores_than_workers(tmp_path: Path) -> None:
    done = subprocess.run(
        (sys.executable, "-c", NO_ROOM),
        env={**spark_variables(tmp_path), "PATH": str(Path(sys.executable).parent) + ":/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.stdout.strip() == node_texts.too_few_came(2, 1, 1.0, texts.MORE_EXECUTORS), done.stderr


def test_a_job_waits_for_executors_as_long_as_it_is_told(tmp_path: Path) -> None:
    said = refused(tmp_path, f"{ONE_CORE} wait=2s", workers=2)
    assert said in {node_texts.too_few_came(2, slots, 2.0, texts.MORE_EXECUTORS) for slots in (0, 1)}
