"""Data sets of a real Ray cluster: each row counts once though a node is killed; what is refused."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.data import texts as data_texts
from shoal.data.tables.rows_written import RowsWritten
from shoal.launching import texts
from support.launcher import PATIENCE, leftovers
from support.ray_cluster import RayCluster, is_installed, ray_cluster
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
    pytest.mark.timeout(400),
    pytest.mark.skipif(not is_installed(), reason="needs the package ray"),
]

OPENING = """
import os
import sys
from pathlib import Path

import ray
import ray.data
import shoal.ray


def table():
    items = [{"id": n, "value": n / ROWS} for n in range(ROWS)]
    return ray.data.from_items(items, override_num_blocks=6)


def broken(batch, folder):
    if batch["id"].max() == ROWS - 1:
        limit = time.monotonic() + 20
        while not list(Path(folder).glob("*.parquet")) and time.monotonic() < limit:  # another part is there
            time.sleep(0.05)
        raise RuntimeError("the last part cannot be computed")
    return batch


def call(data=None, function=train, **options):
    options = {"arguments": {"pause": 0.0}, "workers": 2, "threads": 1, "progress": "plain", **options}
    return lambda: shoal.ray.train(function, data, **options).check()


def connect():
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False

"""

TRAINS = """
if __name__ == "__main__":
    connect()
    call(table(), at="rows", arguments={"pause": 0.05}, run_dir="run")()
    assert ray.get(ray.remote(lambda: 7).remote()) == 7  # the program's own connection is still there
    refused(call(table(), at="rows"))
    call("rows", run_dir="again")()
"""

REFUSED = """
if __name__ == "__main__":
    connect()
    data = table()
    refused(call(data))
    refused(call(data.to_pandas(), at="rows"))
    refused(call(at="rows"))
    refused(call(data, at="rows", arguments={"data": 1}))
    refused(call(data, other, at="rows"))
    refused(call(data, at="rows", wrokers=3))
    refused(call(data, at="."))
    assert not os.path.exists("rows")
    refused(call(data, at="/proc/self/cwd/rows"))  # another folder in each process
    try:
        call(data.map_batches(broken, fn_args=[os.path.abspath("broken")]), at="broken")()
    except Exception as error:
        print("failed:", "the last part cannot be computed" in str(error), error.__notes__)
    refused(call(data, at="broken"))
    refused(call("broken"))
"""


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    """Three nodes; after the test nothing of jobs runs on any of them."""
    with ray_cluster(1, 1, 1) as made:
        yield made
        limit = time.monotonic() + PATIENCE
        while made.left:
            assert time.monotonic() < limit, made.left
            time.sleep(0.1)


def test_each_row_counts_once_though_a_node_is_killed(tmp_path: Path, cluster: RayCluster) -> None:
    program = start(tmp_path, OPENING + TRAINS, cluster.address, RAY_TMPDIR=str(cluster.folder))
    until_steps(tmp_path / "run", program)
    lost = next(node for node in nodes_of(tmp_path / "run").values() if node != cluster.nodes[0])  # not Ray's head
    cluster.kill(lost)
    stdout = output_of(program)
    assert stdout.count(f"rows used once: {ROWS}\n") == 2, stdout
    [died] = deaths(tmp_path / "run")
    assert nodes_of(tmp_path / "run")[died.worker] == lost
    assert refusals(stdout) == [data_texts.table_is_there(str(tmp_path / "rows"), ROWS)]
    assert len(list((tmp_path / "rows").glob("*.parquet"))) == PARTS
    assert marker_in(tmp_path / "rows") == RowsWritten(True, PARTS, ROWS, size_of(tmp_path / "rows"))
    assert leftovers(tmp_path) == []


def test_nothing_is_written_in_vain_and_no_part_of_a_table_is_trained_on(tmp_path: Path, cluster: RayCluster) -> None:
    stdout = output_of(start(tmp_path, OPENING + REFUSED, cluster.address, RAY_TMPDIR=str(cluster.folder)))
    found = refusals(stdout)
    why = "missing a required argument: 'table'"
    unfinished = data_texts.table_unfinished(str(tmp_path / "broken"))
    assert found == [
        texts.NO_PLACE_FOR_TABLE,
        texts.no_table("DataFrame", "ray.data.Dataset"),
        texts.at_without_table("rows"),
        texts.data_twice("data"),
        texts.wrong_keywords("other", "(run, table)", why),
        found[5],
        data_texts.place_in_use(str(tmp_path)),
        texts.table_not_shared(socket.gethostname(), "/proc/self/cwd/rows", ROWS, ROWS),
        unfinished,
        unfinished,
    ]
    assert "wrokers" in found[5]
    assert f"failed: True {[unfinished]}" in stdout
    assert 0 < len(list((tmp_path / "broken").glob("*.parquet"))) < PARTS
    assert not marker_in(tmp_path / "broken").is_whole
