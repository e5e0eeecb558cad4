"""Files of lines that are damaged, torn, huge or still growing."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.watch.record import lines
from shoal.watch.record.lines import LineFile, last_line

NUMBERS = msgspec.json.Decoder(dict[str, int])


def read(path: Path) -> tuple[list[int], int]:
    file = LineFile(path, NUMBERS)
    found = [line["n"] for line in file]
    return found, file.skipped


def test_missing_file_is_an_empty_one(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == ([], 0)
    assert last_line(tmp_path / "none", NUMBERS) is None


@pytest.mark.parametrize("torn", [b'{"n":', b'{"n":3}', b"\0" * 5000])
def test_torn_last_line_is_not_there_yet(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"n":1}\n{"n":2}\n' + torn)
    assert read(path) == ([1, 2], 0)
    assert last_line(path, NUMBERS) == {"n": 2}


@pytest.mark.parametrize(
    "damaged", [b"", b"{", b'{"n":"text"}', b'{"n":1.5}', b'{"\xff":1}', b"[" * 100_000, b"\0\0\0", b"\x80" * 100]
)
def test_damaged_line_costs_only_itself(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"n":1}\n' + damaged + b'\n{"n":2}\n' + damaged + b"\n")
    assert read(path) == ([1, 2], 2 if damaged else 0)
    assert last_line(path, NUMBERS) == {"n": 2}


def test_endless_line_is_never_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST", 1 << 19)
    path = tmp_path / "lines"
    path.write_bytes(b'{"n":1}\n' + b"x" * (3 << 20) + b'\n{"n":2}\n' + b"y" * (2 << 20))
    file = LineFile(path, NUMBERS)
    longest = max(len(block) for block in file._whole_lines())
    assert longest <= (1 << 19) + 2 * lines.BLOCK
    assert read(path) == ([1, 2], 1)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").mkdir()
    file = LineFile(tmp_path / "events.jsonl", NUMBERS)
    assert list(file) == []
    assert file.problem == f"events.jsonl cannot be read: {os.strerror(21)}"


@given(
    st.lists(st.one_of(st.integers(0, 9), st.just(None)), max_size=40),
    st.integers(4, 40),
    st.binary(max_size=5).filter(lambda tail: b"\n" not in tail),
)
def test_blocks_may_cut_anywhere(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int | None], block: int, tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes(b"".join(b'{"n":%d}\n' % n if n is not None else b"broken\n" for n in numbers) + tail)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK", block)
        assert read(path) == ([n for n in numbers if n is not None], numbers.count(None))
