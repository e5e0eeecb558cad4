"""Opening what may be no plain file: nothing waits, and nothing reads more than it was told to."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import files


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "a FIFO": (os.mkfifo, "it is a FIFO, no plain file"),
    "a folder": (lambda path: path.mkdir(), "Is a directory"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, no plain file"),
    "a socket": (_socket, "it is a socket, no plain file"),
    "a loop": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "a broken link": (lambda path: path.symlink_to("nowhere"), "it is a link that leads nowhere"),
    "nothing": (lambda _: None, "No such file or directory"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_plain_file_is_named_and_not_waited_for(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    make, words = SPECIAL[kind]
    path = Path("file")
    make(path)
    for read in (files.open_plain, lambda path: files.read_plain(path, 10), lambda path: list(files.whole_lines(path))):
        with pytest.raises(OSError) as error:
            read(path)
        assert error.value.strerror == words


@pytest.mark.parametrize("kind", ["a FIFO", "a folder", "a socket", "a loop"])
def test_nothing_is_appended_to_what_would_have_to_be_waited_for(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, words = SPECIAL[kind]
    make(Path("file"))
    with pytest.raises(OSError) as error:
        files.open_append(Path("file"))
    assert error.value.strerror == words
    if kind == "a FIFO":
        reader = os.open("file", os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(OSError) as error:
            files.open_append(Path("file"))
        os.close(reader)
        assert error.value.strerror == words


def test_a_file_is_made_and_appended_to(tmp_path: Path) -> None:
    for word in (b"one ", b"two"):
        with files.open_append(tmp_path / "file") as file:
            file.write(word)
    assert files.read_plain(tmp_path / "file", 7) == b"one two"
    with pytest.raises(OSError, match="more than 6 bytes"):
        files.read_plain(tmp_path / "file", 6)
    assert files.tail(tmp_path / "file", 3) == b"two"
    assert files.tail(tmp_path / "file", 100) == b"one two"


@given(st.lists(st.binary(max_size=40)), st.integers(1, 60), st.integers(0, 50))
def test_lines_are_whole_wherever_blocks_cut(lines: list[bytes], block: int, start: int) -> None:
    lines = [line.replace(b"\n", b"") + b"\n" for line in lines]
    data = b"".join(lines) + b"torn"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", block)
        path = Path("/tmp") / f"shoal-test-lines-{os.getpid()}"
        path.write_bytes(data)
        try:
            found = list(files.whole_lines(path, start))
        finally:
            path.unlink()
    assert b"".join(found) == data[start : data.rindex(b"\n") + 1 if b"\n" in data[start:] else start]


def test_lines_that_are_too_long_are_left_out_and_a_file_without_lines_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK", 16)
    monkeypatch.setattr(files, "LONGEST_LINE", 32)
    path = tmp_path / "file"
    path.write_bytes(b"first\n" + b"x" * 100 + b"\nsecond\n")
    assert list(files.whole_lines(path)) == [b"first\n", b"second\n"]
    monkeypatch.setattr(files, "LONGEST_GAP", 64)
    with path.open("wb") as file:
        file.truncate(1 << 40)  # which would take hours
    assert list(files.whole_lines(path)) == []


@pytest.mark.parametrize("text", [b"a = " + b"[" * 100_000, b"a = " + b"9" * 10_000, b"\xff", b"a = ", b"a = 1\na = 2"])
def test_settings_that_cannot_be_read_are_a_value_error(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(text)
    with pytest.raises(ValueError):
        files.read_toml(tmp_path / "file")
