"""`shoal.ray.train`: training inside a Ray program.

The workers run in the cluster that the program is connected to, beside its own tasks and actors. A data set is written
once, by tasks of that cluster, and nothing of it is collected on one machine.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.environment import in_ray_cluster
from shoal.errors import UsageError
from shoal.launching import texts
from shoal.launching.from_python.job_result import JobResult
from shoal.launching.launch import launch

if TYPE_CHECKING:
    from ray.data import Dataset

DATA = "data"  # the keyword under which a function gets the rows


def train(
    function: Callable[..., object],
    dataset: Dataset | str | PathLike[str] | None = None,
    *,
    at: str | PathLike[str] = "",
    arguments: Mapping[str, object] | None = None,
    config: str | PathLike[str] | None = None,
    **options: object,
) -> JobResult:
    """Train in a Ray cluster, and return how the job ended, as `shoal.launch` does.

    The cluster is the one that this program has called `ray.init` for, and stays connected. Otherwise it is found as by
    `shoal run --on ray`. `function` takes a `Run`, and `arguments` by name. With a `ray.data.Dataset` it also takes
    `data`, a `shoal.Files` whose samples are the rows: tasks of the cluster write them once, as Parquet files, to the
    folder or URL `at`, which all nodes reach. Instead of a data set, give the URL of Parquet files that are there
    already: to go on with a job, for example. Options are the settings of `shoal run` in Python's spelling:
    `workers=4, ray="gpus=1"`.
    """
    given = dict(arguments or {})
    if dataset is not None:
        from shoal.data.tables.table_files import table_files

        if DATA in given:
            raise UsageError(texts.data_twice(DATA))
        given[DATA] = table_files(dataset if isinstance(dataset, str | PathLike) else _written(dataset, fspath(at)))
    elif at:
        raise UsageError(texts.at_without_dataset(fspath(at)))
    with _own_cluster():
        return launch(function, arguments=given, config=config, on="ray", **options)


def _own_cluster() -> contextlib.AbstractContextManager[None]:
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return contextlib.nullcontext()
    return in_ray_cluster(str(ray.get_runtime_context().gcs_address))


def _written(dataset: Dataset, at: str) -> str:
    """Have the cluster write the rows; returns the place."""
    if not hasattr(dataset, "write_parquet"):
        raise UsageError(texts.no_ray_dataset(type(dataset).__name__))
    if not at:
        raise UsageError(texts.NO_PLACE_FOR_DATASET)
    from ray.data import SaveMode

    place = at if "://" in at else str(Path(at).absolute())  # Ray's tasks have other working directories
    try:
        dataset.write_parquet(place, mode=SaveMode.ERROR)
    except ValueError as error:
        if "already exists" in str(error):
            raise UsageError(texts.dataset_is_there(place)) from None
        raise
    return place
