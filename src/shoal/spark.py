"""Training inside a Spark program: `shoal.spark.train(function, frame, at=URL, workers=4)`.

The workers run in the executors of the program's own Spark application. A data frame is written once, by the executors
that hold it, and nothing of it is collected on one machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shoal.errors import UsageError
from shoal.launching import texts
from shoal.launching.from_python.cluster_rows import TableJob, TableWriter, options_on, with_rows
from shoal.launching.from_python.job_result import JobResult
from shoal.launching.launch import launch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from shoal.data.tables.rows_written import RowsWritten

__all__ = ["train"]


def train(
    function: Callable[..., object],
    data: DataFrame | str | os.PathLike[str] | None = None,
    *,
    at: str | os.PathLike[str] = "",
    arguments: Mapping[str, object] | None = None,
    **options: Any,
) -> JobResult:
    """Train in the executors of the active SparkSession, and return how the job ended, as `shoal.launch` does.

    `function` takes a `Run`, and `arguments` by name. With `data` it also takes `data`, a `shoal.Files` whose samples
    are the rows. Executors write the data frame once, as Parquet files, to the empty folder or URL `at`, which all
    of them reach. Instead of a data frame, give the URL of Parquet files that are there already: to go on with a job,
    for example. Options are the settings of `shoal run` in Python's spelling: `workers=4`.
    """
    job = TableJob(function, arguments, options_on("spark", options))
    given = with_rows(job, data, at=at, writer=TableWriter(_check, _write))
    return launch(function, arguments=given, **job.options)


def _check(frame: DataFrame) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415  an extra

    if not hasattr(frame, "sparkSession"):
        raise UsageError(texts.no_table(type(frame).__name__, "pyspark.sql.DataFrame"))
    try:
        _ = frame.sparkSession.sparkContext
    except PySparkException:
        raise UsageError(texts.NO_CLASSIC_SESSION) from None


def _write(frame: DataFrame, place: str) -> RowsWritten:
    from pyspark.sql import Observation, functions  # noqa: PLC0415  an extra

    from shoal.data.tables.rows_written import counted  # noqa: PLC0415  imports torch

    # Without file:// Spark might take it for a path in HDFS. Nothing is quoted: Hadoop takes %20 for three characters.
    url = place if "://" in place else f"file://{place}"
    rows = Observation()
    observed = frame.observe(rows, functions.count(functions.lit(1)).alias("rows"))
    observed.write.mode("append").parquet(url)  # to a folder in which is nothing but Shoal's own file
    return counted(place, int(rows.get["rows"]))
