"""Tables that Shoal has a cluster write: no part of one is read, nor one of which a machine sees something else."""

from __future__ import annotations

import pickle
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from shoal.data import texts
from shoal.data.tables import rows_written
from shoal.data.tables.part_writing import MARKER, WrittenPart, together, write_part
from shoal.data.tables.rows_written import RowsWritten, begin, counted, finish, marker_at
from shoal.data.tables.table_files import table_files
from shoal.errors import DataError, UsageError
from support.object_store import BUCKET, ObjectStore, object_store

HERE = socket.gethostname()


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as started:
        yield started
    s3fs.S3FileSystem.clear_instance_cache()  # an instance remembers its server


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ObjectStore) -> str:
    """Where nothing is yet."""
    monkeypatch.setattr(rows_written, "LATE", 0.0)
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    name = secrets.token_hex(8)
    return {
        "folder": str(tmp_path / "deep" / "table"),
        "memory": f"memory://{name}",
        "s3": f"s3://{BUCKET}/{name}",
    }[request.param]


def write(place: str, parts: int) -> RowsWritten:
    """Parts of two rows each."""
    tables = [pa.table({"number": [2 * part, 2 * part + 1]}) for part in range(parts)]
    total = together([write_part(place, f"part-{part}.parquet", table) for part, table in enumerate(tables)])
    assert not total.blind
    return RowsWritten(is_whole=True, files=total.files, rows=total.rows, bytes=total.bytes)


def change(place: str, name: str, content: bytes | None) -> None:
    """Write or remove a file behind Shoal's back."""
    filesystem, root = fsspec.core.url_to_fs(place)
    if content is None:
        filesystem.rm_file(f"{root}/{name}")
        return
    with filesystem.open(f"{root}/{name}", "wb") as opened:
        opened.write(content)


def refused(place: str, text: str) -> None:
    with pytest.raises(DataError, match=re.escape(text)):
        table_files(place)


def test_a_whole_table_is_read_and_travels(place: str) -> None:
    begin(place)
    written = write(place, 3)
    finish(place, written)
    assert marker_at(place) == written
    files = pickle.loads(pickle.dumps(table_files(place)))
    rows = [row["number"] for path in files.paths for row in files.read(path)]
    assert rows == list(range(6))
    with pytest.raises(UsageError, match=re.escape(texts.table_is_there(place, 6))):
        begin(place)


def test_a_table_without_its_last_parts_is_refused(place: str) -> None:
    begin(place)
    write(place, 2)
    refused(place, texts.table_unfinished(place))
    with pytest.raises(UsageError, match=re.escape(texts.table_unfinished(place))):
        begin(place)


def test_a_folder_of_somebody_else_is_read_as_it_is_and_never_written_to(tmp_path: Path) -> None:
    pq.write_table(pa.table({"number": [1]}), tmp_path / "one.parquet")
    files = pickle.loads(pickle.dumps(table_files(tmp_path)))
    assert [row for path in files.paths for row in files.read(path)] == [{"number": 1}]
    with pytest.raises(UsageError, match=re.escape(texts.place_in_use(str(tmp_path)))):
        begin(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["one.parquet"]


def test_a_machine_that_sees_other_files_than_were_written_says_so(place: str) -> None:
    begin(place)
    written = write(place, 3)
    size = written.bytes // 3
    change(place, "part-2.parquet", None)
    differ = texts.tables_differ(place, HERE, texts.amount(2, 2 * size), texts.amount(3, 3 * size))
    with pytest.raises(DataError, match=re.escape(differ)):
        finish(place, written)
    refused(place, texts.table_unfinished(place))
    write(place, 3)
    finish(place, written)
    travelling = pickle.dumps(table_files(place))
    change(place, "part-9.parquet", b"a file of somebody else's")
    differ = texts.tables_differ(place, HERE, texts.amount(4, 3 * size + 25), texts.amount(3, 3 * size))
    refused(place, differ)
    with pytest.raises(DataError, match=re.escape(differ)):
        pickle.loads(travelling)


def test_files_that_travel_to_a_machine_without_them_are_refused_at_once(tmp_path: Path) -> None:
    """The folder is not shared: even the file that comes before the first row is not seen."""
    place = str(tmp_path / "table")
    begin(place)
    written = write(place, 2)
    finish(place, written)
    travelling = pickle.dumps(table_files(place))
    Path(place).rename(tmp_path / "elsewhere")
    amounts = texts.amount(0, 0), texts.amount(2, written.bytes)
    with pytest.raises(DataError, match=re.escape(texts.tables_differ(place, HERE, *amounts))):
        pickle.loads(travelling)


def test_a_process_that_does_not_see_the_place_writes_nothing(place: str) -> None:
    table = pa.table({"number": [1, 2, 3]})
    assert write_part(place, "part-0.parquet", table) == WrittenPart(0, 0, 0, 3, HERE)
    with pytest.raises(DataError, match=re.escape(texts.no_tables(place))):
        table_files(place)


def test_a_part_that_is_written_twice_counts_once(place: str) -> None:
    begin(place)
    write(place, 2)
    finish(place, write(place, 2))
    assert len(table_files(place).paths) == 2


def test_rows_are_counted_in_the_files(place: str) -> None:
    begin(place)
    written = write(place, 3)
    assert counted(place, 6) == written
    for rows in (5, 7):
        with pytest.raises(DataError, match=re.escape(texts.rows_differ(place, HERE, 6, rows))):
            counted(place, rows)


def test_a_table_without_rows_is_refused(place: str) -> None:
    begin(place)
    with pytest.raises(DataError, match=re.escape(texts.NO_SAMPLES)):
        finish(place, RowsWritten(is_whole=True))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not JSON",
        b'{"is_whole": true, "files": -1}',
        b'{"is_whole": true, "rows": 1e400}',
        b'{"is_whole": 1}',
        b'{"is_whole": true}' + b" " * rows_written.MOST,
    ],
)
def test_a_marker_that_shoal_cannot_have_written_is_refused(place: str, content: bytes) -> None:
    begin(place)
    finish(place, write(place, 1))
    change(place, MARKER, content)
    refused(place, texts.marker_damaged(place, MARKER))
    with pytest.raises(DataError, match=re.escape(texts.marker_damaged(place, MARKER))):
        begin(place)


def test_a_place_where_nothing_can_be_written_is_named_without_its_password() -> None:
    with pytest.raises(DataError, match=re.escape("nothing can be written to /proc/absent/table: ")):
        begin("/proc/absent/table")
    with pytest.raises(DataError, match=re.escape("//host/table cannot be listed")) as raised:
        begin("nosuch://me:secret@host/table")
    assert "secret" not in str(raised.value)
