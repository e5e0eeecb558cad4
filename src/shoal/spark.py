"""Training inside a Spark program: `shoal.spark.train(function, frame, at=URL, workers=4)`.

The workers run in the executors of the program's own Spark application. A data frame is written once, by the executors
that hold it, and nothing of it is collected on one machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import UsageError
from shoal.launching import texts
from shoal.launching.from_python.cluster_rows import with_rows
from shoal.launching.from_python.job_result import JobResult
from shoal.launching.launch import launch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    are the rows. Executors write the data frame once, as Parquet files, to the folder or URL `at`, which all of them
    reach. Instead of a data frame, give the URL of Parquet files that are there already: to go on with a job, for
    example. Options are the settings of `shoal run` in Python's spelling: `workers=4`.
    """
    given = with_rows(arguments, data, at=at, write=_written)
    return launch(function, arguments=given, on="spark", **options)


def _written(frame: DataFrame, at: str) -> str:
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415  an extra

    if not hasattr(frame, "sparkSession"):
        raise UsageError(texts.no_table(type(frame).__name__, "pyspark.sql.DataFrame"))
    try:
        _ = frame.sparkSession.sparkContext
    except PySparkException:
        raise UsageError(texts.NO_CLASSIC_SESSION) from None
    url = at if "://" in at else Path(at).absolute().as_uri()  # else Spark might take it for a path in HDFS
    try:
        frame.write.parquet(url)
    except AnalysisException as error:
        if error.getCondition() == "PATH_ALREADY_EXISTS":
            raise UsageError(texts.table_is_there(at)) from None
        raise
    return url.replace("s3a://", "s3://", 1)  # Hadoop's name for the same place
