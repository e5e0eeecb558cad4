"""A process's bytes become lines: each once, none lost, however the bytes are cut."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shoal.launching.processes.output import LAST_LINES, LONGEST_LINE, Output


def lines_of(pieces: list[bytes]) -> tuple[list[str], list[str], bytes]:
    with tempfile.TemporaryDirectory() as folder:
        output = Output(Path(folder) / "log")
        lines = [line for piece in pieces for line in output.feed(piece)]
        lines += output.finish()
        return lines, list(output.last), (Path(folder) / "log").read_bytes()


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_cutting_the_bytes_differently_changes_nothing(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    lines, last, log = lines_of(pieces)
    assert lines == lines_of([whole])[0]
    assert len(lines) == whole.count(b"\n") + (not whole.endswith(b"\n") and whole != b"")
    assert last == lines[-LAST_LINES:]
    assert log == whole


def test_progress_bar_of_a_script_shows_its_last_state() -> None:
    assert lines_of([b"\r 10%\r 50%", b"\r100%\nnext\r\n"])[0] == ["100%", "next"]


def test_line_without_end_is_cut_before_it_fills_the_memory() -> None:
    lines, _, _ = lines_of([b"x" * LONGEST_LINE, b"x" * LONGEST_LINE])
    assert [len(line) for line in lines] == [2 * LONGEST_LINE]


def test_a_full_disk_costs_the_log_and_not_the_lines(tmp_path: Path) -> None:
    output = Output(Path("/dev/full"))
    first, second = output.feed(b"one\n"), output.feed(b"two\n")
    assert first == ("one", "(no more is written to /dev/full: No space left on device)")
    assert second == ("two",)
    assert output.finish() == ()
