"""Data frames in real executors of Spark: each row counts once though an executor is killed; what is refused."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.data import texts as data_texts
from shoal.data.tables.rows_written import RowsWritten
from shoal.launching import texts
from support.launcher import leftovers
from support.spark_cluster import executors_of, is_installed, spark_variables
from support.table_programs import (
    PARTS,
    ROWS,
    deaths,
    marker_in,
    nodes_of,
    output_of,
    refusals,
    size_of,
    start,
    until_steps,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),  # several JVMs and torch start in each
    pytest.mark.skipif(not is_installed(), reason="needs Java and pyspark"),
]

OPENING = """
import os

import shoal.spark


def started():
    from pyspark.sql import SparkSession

    settings = {"spark.executor.memory": "512m", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    return SparkSession.builder.master("local-cluster[2,1,1024]").config(map=settings).getOrCreate()


def table(session):
    return session.range(0, ROWS, 1, 6).selectExpr("id", "cast(id as double) as value")


def call(data=None, function=train, **options):
    options = {"arguments": {"pause": 0.0}, "workers": 2, "progress": "plain", **options}
    return lambda: shoal.spark.train(function, data, **options).check()

"""

TRAINS = """
if __name__ == "__main__":
    session = started()
    call(table(session), at="all rows: 100%", arguments={"pause": 0.05}, run_dir="run", min_workers=2)()
    print("the session still works:", session.range(7).count())
    refused(call(table(session), at="all rows: 100%"))
    call("all rows: 100%", run_dir="again")()
    session.stop()
"""

REFUSED = """
if __name__ == "__main__":
    from shoal.data.tables import rows_written

    session = started()
    frame = table(session)
    refused(call(frame))
    refused(call(["rows"], at="rows"))
    refused(call(at="rows"))
    refused(call(frame, at="rows", arguments={"data": 1}))
    refused(call(frame, other, at="rows"))
    refused(call(frame, at="rows", workers="many"))
    refused(call(frame, at="."))
    assert not os.path.exists("rows")
    refused(call(frame.where("id < 0"), at="empty"))
    rows_written.LATE = 2.0
    refused(call(frame, at="/proc/self/cwd/rows"))  # another folder in each process
    broken = frame.selectExpr("id", "if(id = 599, double(raise_error('the last part')), value) as value")
    try:
        call(broken, at="broken")()
    except Exception as error:
        print("failed:", "the last part" in str(error), error.__notes__)
    refused(call(frame, at="broken"))
    refused(call("broken"))
    session.stop()
"""


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """After the test nothing of Spark runs."""
    yield {"PYSPARK_PYTHON": sys.executable, **spark_variables(tmp_path)}
    assert leftovers(tmp_path) == []
    ours = [one for one in psutil.process_iter(["cwd"]) if (one.info["cwd"] or "").startswith(str(tmp_path))]
    assert not [one for one in ours if one.status() != psutil.STATUS_ZOMBIE]


def test_each_row_counts_once_though_an_executor_is_killed(tmp_path: Path, variables: dict[str, str]) -> None:
    program = start(tmp_path, OPENING + TRAINS, **variables)
    until_steps(tmp_path / "run", program)
    executors_of(program.pid)["0"].kill()
    stdout = output_of(program)
    assert stdout.count(f"rows used once: {ROWS}\n") == 2, stdout
    assert "the session still works: 7" in stdout
    [died] = deaths(tmp_path / "run")
    nodes = nodes_of(tmp_path / "run")
    assert (nodes[died.worker], nodes[2]) == ("executor-0", "executor-2")
    rows = tmp_path / "all rows: 100%"  # Spark and Shoal mean the same folder by it
    assert refusals(stdout) == [data_texts.table_is_there(str(rows), ROWS)]
    assert len(list(rows.glob("*.parquet"))) == PARTS
    assert marker_in(rows) == RowsWritten(True, PARTS, ROWS, size_of(rows))


def test_nothing_is_written_in_vain_and_no_part_of_a_table_is_trained_on(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    stdout = output_of(start(tmp_path, OPENING + REFUSED, **variables))
    found = refusals(stdout)
    why = "missing a required argument: 'table'"
    unfinished = data_texts.table_unfinished(str(tmp_path / "broken"))
    assert found == [
        texts.NO_PLACE_FOR_TABLE,
        texts.no_table("list", "pyspark.sql.DataFrame"),
        texts.at_without_table("rows"),
        texts.data_twice("data"),
        texts.wrong_keywords("other", "(run, table)", why),
        found[5],
        data_texts.place_in_use(str(tmp_path)),
        data_texts.NO_SAMPLES,
        data_texts.rows_differ("/proc/self/cwd/rows", socket.gethostname(), 0, ROWS),
        unfinished,
        unfinished,
    ]
    assert "many" in found[5]
    assert f"failed: True {[unfinished]}" in stdout
    assert not marker_in(tmp_path / "broken").is_whole
