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
from shoal.launching.from_python.cluster_rows import TableJob, TableWriter, options_on, with_rows, written_by
from shoal.launching.from_python.job_result import JobResult
from shoal.launching.launch import launch

if TYPE_CHECKING:
    from dask.dataframe import DataFrame
    from distributed import Client

    from shoal.data.tables.part_writing import WrittenPart
    from shoal.data.tables.rows_written import RowsWritten

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
    are the rows. A Dask DataFrame is written once, without its index, by the cluster, as Parquet files to the empty
    folder or URL `at`, which all workers reach. Instead of a data frame, give the URL of Parquet files that are there
    already: to go on with a job, for example. `client`: of the cluster; without it the current one. Options are the
    settings of `shoal run` in Python's spelling: `workers=4`.
    """
    job = TableJob(function, arguments, options_on("dask", options))
    with contextlib.nullcontext() if client is None else client.as_current():
        given = with_rows(job, data, at=at, writer=TableWriter(_check, _write))
        return launch(function, arguments=given, **job.options)


def _check(frame: DataFrame) -> None:
    if not all(hasattr(frame, name) for name in ("to_delayed", "npartitions", "columns")):
        raise UsageError(texts.no_table(type(frame).__name__, "dask.dataframe.DataFrame"))
    try:
        from distributed import futures_of, wait  # noqa: PLC0415  an extra
    except ModuleNotFoundError:
        return  # the engine needs it too, and says how to get it
    if futures := futures_of(frame):
        wait(futures)  # a cluster that still computes this very frame would look busy


def _write(frame: DataFrame, place: str) -> RowsWritten:
    from dask import delayed  # noqa: PLC0415  an extra

    parts = frame.to_delayed()
    digits = len(str(len(parts)))
    # Files are sorted by name: with equally many digits that is the order of the partitions.
    names = [f"part-{number:0{digits}}.parquet" for number in range(len(parts))]
    writes = [delayed(_write_partition)(part, place, name) for part, name in zip(parts, names, strict=True)]
    with _cluster() as client:
        return written_by(client.gather(client.compute(writes)), place)


def _cluster() -> contextlib.AbstractContextManager[Client]:
    """The current client, or one of the cluster that Dask's settings name. One of them is there: that was checked."""
    from dask import config  # noqa: PLC0415  an extra
    from distributed import Client  # noqa: PLC0415  an extra

    with contextlib.suppress(ValueError):  # there is none
        return contextlib.nullcontext(Client.current())
    own: contextlib.AbstractContextManager[Client] = Client(
        config.get("scheduler-address"), set_as_default=False, name="shoal"
    )
    return own


def _write_partition(partition: Any, place: str, name: str) -> WrittenPart:
    """In a worker of the cluster."""
    import pyarrow  # type: ignore[import-untyped]  # noqa: PLC0415  an extra; has no types

    from shoal.data.tables.part_writing import write_part  # noqa: PLC0415  not needed where nothing is written

    return write_part(place, name, pyarrow.Table.from_pandas(partition, preserve_index=False))
