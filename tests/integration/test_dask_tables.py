"""Data frames of a real Dask cluster: each row counts once though a worker of Dask is killed; what is refused."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.data import texts as data_texts
from shoal.data.tables.rows_written import RowsWritten
from shoal.disk import texts as disk_texts
from shoal.engines import texts as engine_texts
from shoal.launching import texts
from support.dask_cluster import DaskCluster, dask_cluster
from support.launcher import leftovers
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

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

OPENING = """
import fcntl
import os
import sys
from pathlib import Path

import dask.dataframe
import pandas
from distributed import Client

import shoal.dask


def table():
    rows = pandas.DataFrame({"id": range(ROWS), "value": [n / ROWS for n in range(ROWS)], "name": ["a"] * ROWS})
    return dask.dataframe.from_pandas(rows, npartitions=6)


def broken(part, folder):
    if part["id"].max() == ROWS - 1:
        limit = time.monotonic() + 20
        while len(list(Path(folder).glob("*.parquet"))) < 2 and time.monotonic() < limit:  # other parts are there
            time.sleep(0.05)
        raise RuntimeError("the last part cannot be computed")
    return part


def call(data=None, function=train, **options):
    options = {"arguments": {"pause": 0.0}, "workers": 2, "progress": "plain", **options}
    return lambda: shoal.dask.train(function, data, **options).check()

"""

TRAINS = """
if __name__ == "__main__":
    with Client(sys.argv[1]):
        call(table(), at="rows", arguments={"pause": 0.05}, run_dir="run")()
        refused(call(table(), at="rows"))
        call("rows", run_dir="again")()
        here = fcntl.fcntl(os.open("rows", os.O_RDONLY), fcntl.F_DUPFD_CLOEXEC, 200)
        refused(call(f"/proc/self/fd/{here}", run_dir="elsewhere"))  # a folder that no other process sees
"""

REFUSED = """
if __name__ == "__main__":
    frame = table()
    refused(call(frame, at="rows"))
    with Client(sys.argv[1], set_as_default=False) as client:
        refused(call(frame, client=client))
        refused(call(frame.compute(), at="rows", client=client))
        refused(call(at="rows", client=client))
        refused(call("rows", at="rows", client=client))
        refused(call(frame, at="rows", client=client, arguments={"data": 1}))
        refused(call(frame, other, at="rows", client=client))
        refused(call(frame, at="rows", client=client, wrokers=3))
        refused(call(frame, at="rows", client=client, workers=3))
        refused(call(frame, at="rows", client=client, run_dir="."))
        refused(call(frame, at=".", client=client))
        assert not os.path.exists("rows")
        refused(call(frame, at="/proc/self/cwd/rows", client=client))  # another folder in each process
"""

FAILS = """
if __name__ == "__main__":
    with Client(sys.argv[1]):
        frame = table()
        try:
            call(frame.map_partitions(broken, os.path.abspath("rows"), meta=frame), at="rows")()
        except RuntimeError as error:
            print("failed:", error, error.__notes__)
        refused(call(frame, at="rows"))
        refused(call("rows"))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask")) as made:
        yield made


def test_each_row_counts_once_though_a_worker_of_dask_is_killed(tmp_path: Path) -> None:
    (tmp_path / "dask").mkdir()
    with dask_cluster(tmp_path / "dask") as cluster:
        program = start(tmp_path, OPENING + TRAINS, cluster.address)
        until_steps(tmp_path / "run", program)
        node = nodes_of(tmp_path / "run")[1]
        os.kill(cluster.workers()[node], signal.SIGKILL)
        stdout = output_of(program)
    assert stdout.count(f"rows used once: {ROWS}\n") == 2, stdout
    [died] = deaths(tmp_path / "run")
    assert nodes_of(tmp_path / "run")[died.worker] == node
    there, elsewhere = refusals(stdout)
    assert there == data_texts.table_is_there(str(tmp_path / "rows"), ROWS)
    amounts = data_texts.amount(0, 0), data_texts.amount(PARTS, size_of(tmp_path / "rows"))
    assert data_texts.tables_differ("/proc/self/fd/200", socket.gethostname(), *amounts) in elsewhere
    assert len(list((tmp_path / "rows").glob("*.parquet"))) == PARTS
    assert marker_in(tmp_path / "rows") == RowsWritten(True, PARTS, ROWS, size_of(tmp_path / "rows"))
    assert leftovers(tmp_path) == []


def test_nothing_is_written_for_a_job_that_cannot_start(tmp_path: Path, cluster: DaskCluster) -> None:
    found = refusals(output_of(start(tmp_path, OPENING + REFUSED, cluster.address)))
    why = "missing a required argument: 'table'"
    assert found == [
        engine_texts.NO_DASK_CLIENT,
        texts.NO_PLACE_FOR_TABLE,
        texts.no_table("DataFrame", "dask.dataframe.DataFrame"),
        texts.at_without_table("rows"),
        texts.at_without_table("rows"),
        texts.data_twice("data"),
        texts.wrong_keywords("other", "(run, table)", why),
        found[7],
        engine_texts.dask_too_small(3, 2, 2),
        disk_texts.run_directory_taken(Path(), has_job=False),
        data_texts.place_in_use(str(tmp_path)),
        texts.table_not_shared(socket.gethostname(), "/proc/self/cwd/rows", ROWS, ROWS),
    ]
    assert "wrokers" in found[7]
    assert leftovers(tmp_path) == []


def test_a_table_that_was_not_written_to_its_end_is_never_trained_on(tmp_path: Path, cluster: DaskCluster) -> None:
    stdout = output_of(start(tmp_path, OPENING + FAILS, cluster.address))
    unfinished = data_texts.table_unfinished(str(tmp_path / "rows"))
    assert f"failed: the last part cannot be computed {[unfinished]}" in stdout
    assert refusals(stdout) == [unfinished, unfinished]
    assert 0 < len(list((tmp_path / "rows").glob("*.parquet"))) < PARTS
    assert not marker_in(tmp_path / "rows").is_whole
