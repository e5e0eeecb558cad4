"""Training inside a Ray program: `shoal.ray.train(function, dataset, at=URL, workers=4)`.

The workers run in the cluster that the program is connected to, beside its own tasks and actors. A data set is written
once, by tasks of that cluster, and nothing of it is collected on one machine.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from shoal.environment import in_ray_cluster
from shoal.errors import UsageError
from shoal.launching import texts
from shoal.launching.from_python.cluster_rows import TableJob, TableWriter, options_on, with_rows, written_by
from shoal.launching.from_python.job_result import JobResult
from shoal.launching.launch import launch

if TYPE_CHECKING:
    from ray.data import Dataset

    from shoal.data.tables.rows_written import RowsWritten

__all__ = ["train"]


def train(
    function: Callable[..., object],
    data: Dataset | str | PathLike[str] | None = None,
    *,
    at: str | PathLike[str] = "",
    arguments: Mapping[str, object] | None = None,
    **options: Any,
) -> JobResult:
    """Train in a Ray cluster, and return how the job ended, as `shoal.launch` does.

    The cluster is the one that this program has called `ray.init` for, and stays connected. Otherwise it is found as by
    `shoal run --on ray`. `function` takes a `Run`, and `arguments` by name. With a `ray.data.Dataset` it also takes
    `data`, a `shoal.Files` whose samples are the rows: tasks of the cluster write them once, as Parquet files, to the
    empty folder or URL `at`, which all nodes reach. Instead of a data set, give the URL of Parquet files that are there
    already: to go on with a job, for example. Options are the settings of `shoal run` in Python's spelling:
    `workers=4, ray="gpus=1"`.
    """
    job = TableJob(function, arguments, options_on("ray", options))
    with _own_cluster():
        given = with_rows(job, data, at=at, writer=TableWriter(_check, _write))
        return launch(function, arguments=given, **job.options)


def _own_cluster() -> contextlib.AbstractContextManager[None]:
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return contextlib.nullcontext()
    return in_ray_cluster(str(ray.get_runtime_context().gcs_address))


def _check(dataset: Dataset) -> None:
    if not hasattr(dataset, "write_datasink"):
        raise UsageError(texts.no_table(type(dataset).__name__, "ray.data.Dataset"))


def _write(dataset: Dataset, place: str) -> RowsWritten:
    from shoal.launching.from_python.ray_sink import RowsSink  # noqa: PLC0415  imports Ray, an extra

    sink = RowsSink(place)
    dataset.write_datasink(sink)
    return written_by(sink.parts, place)
