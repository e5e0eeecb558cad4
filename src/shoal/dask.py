"""Training on a Dask cluster: `shoal.dask.train(function, frame, at=URL, workers=4)`.

The workers run beside the workers of the cluster, which write a data frame once, where it lies: nothing of it is
collected on one machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from shoal.errors import UsageError
from shoal.launching import texts
from shoal.launching.from_python.cluster_rows import whole_place, with_rows
from shoal.launching.from_python.job_result import JobResult
from shoal.launching.launch import launch

if TYPE_CHECKING:
    from dask.dataframe import DataFrame
    from distributed import Client

__all__ = ["train"]


def train(
    function: Callable[..., object],
    data: DataFrame | str | PathLike[str] | None = None,
    *,
    at: str | PathLike[str] = "",
    arguments: Mapping[str, object] | None = None,
    client: Client | None = None,
    **options: Any,
) -> JobResult:
    """Train on the workers of a Dask cluster, and return how the job ended, as `shoal.launch` does.

    `function` takes a `Run`, and `arguments` by name. With `data` it also takes `data`, a `shoal.Files` whose samples
    are the rows. A Dask DataFrame is written once, without its index, by the cluster, as Parquet files to the folder or
    URL `at`, which all workers reach. Instead of a data frame, give the URL of Parquet files that are there already: to
    go on with a job, for example. `client`: of the cluster; without it the current one. Options are the settings of
    `shoal run` in Python's spelling: `workers=4`.
    """
    with contextlib.nullcontext() if client is None else client.as_current():
        given = with_rows(arguments, data, at=at, write=_written)
        return launch(function, arguments=given, on="dask", **options)


def _written(frame: DataFrame, at: str) -> str:
    from shoal.data.tables.table_files import found_tables  # noqa: PLC0415  imports torch

    if not hasattr(frame, "to_parquet") or not hasattr(frame, "npartitions"):
        raise UsageError(texts.no_table(type(frame).__name__, "dask.dataframe.DataFrame"))
    place = whole_place(at)
    if found_tables(place):
        raise UsageError(texts.table_is_there(place))
    digits = len(str(frame.npartitions))
    # Files are sorted by name: with equally many digits that is the order of the partitions.
    frame.to_parquet(place, write_index=False, name_function=lambda number: f"part-{number:0{digits}}.parquet")
    return place
