"""Writing past the page cache: the same bytes as any other way, whatever lies where, and wherever it is not offered."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.checkpoint.stores import direct_write
from shoal.checkpoint.stores.direct_write import BLOCK, DirectWriter


class Spy(DirectWriter):
    """Notes how many bytes went past the cache."""

    direct = 0

    def _append(self, data: memoryview) -> int:
        count = super()._append(data)
        if fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            self.direct += count
        return count


def written(path: Path, chunks: list[bytes | memoryview]) -> int:
    """Write them to a new file; how many bytes went past the cache."""
    path.unlink(missing_ok=True)
    with path.open("xb", buffering=0) as file:
        spy = Spy(file.fileno())
        spy.write(chunks)
        os.fsync(file.fileno())
    return spy.direct


def aligned(size: int) -> memoryview:
    memory = memoryview(mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[:size]
    memory[:] = os.urandom(size)
    return memory


sizes = st.lists(st.tuples(st.sampled_from([0, 1, 8, BLOCK]), st.integers(0, 3 * BLOCK)), max_size=4)


@given(sizes)
def test_bytes_are_the_same_wherever_they_lie(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    chunks = [aligned(start + size)[start:] for start, size in sizes]
    written(path, list(chunks))
    assert path.read_bytes() == b"".join(chunks)


def test_whole_blocks_go_past_the_cache_and_the_rest_does_not(tmp_path: Path) -> None:
    header, data = os.urandom(BLOCK), aligned(5 * BLOCK + 7)
    direct = written(tmp_path / "file", [header, data[: 2 * BLOCK], data[2 * BLOCK :]])
    assert (tmp_path / "file").read_bytes() == header + data
    assert direct in (5 * BLOCK, 0)  # 0: the file system of the tests has none of it


def test_a_header_that_ends_off_a_boundary_sends_all_through_the_cache(tmp_path: Path) -> None:
    data = aligned(4 * BLOCK)
    assert written(tmp_path / "file", [b"12345678", data]) == 0
    assert (tmp_path / "file").read_bytes() == b"12345678" + data


@pytest.mark.parametrize("code", direct_write.NOT_OFFERED)
def test_a_file_system_without_direct_writes_gets_all_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """No such file system can be relied on to be here, so the system call's answer is made up."""
    real = fcntl.fcntl

    def refuse(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(code, os.strerror(code))
        return real(descriptor, command, flags)

    monkeypatch.setattr(direct_write.fcntl, "fcntl", refuse)
    data = aligned(4 * BLOCK)
    assert written(tmp_path / "file", [data, data]) == 0
    assert (tmp_path / "file").read_bytes() == bytes(data) * 2


def test_other_errors_are_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with (tmp_path / "file").open("rb") as file, pytest.raises(OSError) as raised:
        DirectWriter(file.fileno()).write([aligned(BLOCK)])
    assert raised.value.errno == errno.EBADF
