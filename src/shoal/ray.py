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
from shoal.launching.from_python.cluster_rows import whole_place, with_rows
from shoal.launching.from_python.job_result import JobResult
from shoal.launching.launch import launch

if TYPE_CHECKING:
    from ray.data import Dataset

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
    folder or URL `at`, which all nodes reach. Instead of a data set, give the URL of Parquet files that are there
    already: to go on with a job, for example. Options are the settings of `shoal run` in Python's spelling:
    `workers=4, ray="gpus=1"`.
    """
    given = with_rows(arguments, data, at=at, write=_written)
    with _own_cluster():
        return launch(function, arguments=given, on="ray", **options)


def _own_cluster() -> contextlib.AbstractContextManager[None]:
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return contextlib.nullcontext()
    return in_ray_cluster(str(ray.get_runtime_context().gcs_address))


def _written(dataset: Dataset, at: str) -> str:
    if not hasattr(dataset, "write_parquet"):
        raise UsageError(texts.no_table(type(dataset).__name__, "ray.data.Dataset"))
    from ray.data import SaveMode  # noqa: PLC0415  an extra

    place = whole_place(at)
    try:
        dataset.write_parquet(place, mode=SaveMode.ERROR)
    except ValueError as error:
        if "already exists" in str(error):
            raise UsageError(texts.table_is_there(place)) from None
        raise
    return place
