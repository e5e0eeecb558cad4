"""Which opened files count as emptied by the script: by its own code, in its own process, and no cache."""

# ruff: noqa: PTH123  scripts use open()

from __future__ import annotations

import csv
import json
import logging
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import shoal
from shoal.training.mistakes import truncated_files
from shoal.training.mistakes.file_hook import unwatch, watch
from shoal.training.mistakes.truncated_files import TruncatedFiles


def peers(generation: int = 1, *, is_new: bool = False) -> Any:
    members = (SimpleNamespace(host="here"),)
    return SimpleNamespace(
        worker=3,
        is_new=is_new,
        group=SimpleNamespace(rank=0),
        generation=SimpleNamespace(number=generation, members=members),
    )


@pytest.fixture
def files() -> Iterator[TruncatedFiles]:
    found = TruncatedFiles(peers())
    watch(found)
    yield found
    unwatch()


def names(files: TruncatedFiles) -> list[str]:
    return [Path(event.path).name for event in files.take()]


def by_json(path: Path) -> None:
    with open(path, "w") as file:
        json.dump({}, file)


def by_csv(path: Path) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerow([1])


def by_log(path: Path) -> None:
    handler = logging.FileHandler(path, mode="w")
    handler.close()


def by_descriptor(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))


WRITERS: list[Callable[[Path], object]] = [
    by_json,
    by_csv,
    by_log,
    by_descriptor,
    lambda path: path.write_text("text"),
    lambda path: np.save(path, np.zeros(2)),
    lambda path: torch.save({"a": torch.zeros(2)}, path),
    lambda path: torch.save({"a": torch.zeros(2)}, str(path)),
    lambda path: torch.save({"a": torch.zeros(2)}, path.with_name("gewählt.npy")),
    lambda path: safetensors.torch.save_file({"a": torch.zeros(2)}, path),
    lambda path: safetensors.torch.save_file({"a": torch.zeros(2)}, filename=str(path)),
    lambda path: safetensors.numpy.save_file({"a": np.zeros(2)}, path),
]


@pytest.mark.parametrize("write", WRITERS)
def test_every_way_to_write_a_file_anew_counts_once(
    write: Callable[[Path], object], tmp_path: Path, files: TruncatedFiles
) -> None:
    write(tmp_path / "results.npy")
    write(tmp_path / "results.npy")
    (event,) = files.take()
    assert Path(event.path).parent == tmp_path
    assert Path(event.path).exists()
    assert event.place.startswith("test_truncated_files.py line ")
    assert (event.worker, event.generation, event.host) == (3, 1, "here")


def test_torch_save_writes_what_it_did_before(tmp_path: Path, files: TruncatedFiles) -> None:
    torch.save({"a": torch.arange(3)}, tmp_path / "model.pt")
    assert torch.load(tmp_path / "model.pt")["a"].tolist() == [0, 1, 2]
    with open(tmp_path / "model.pt", "rb") as file:
        assert torch.load(file)["a"].tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError):
        torch.save({}, tmp_path / "missing" / "model.pt")
    assert names(files) == ["model.pt", "model.pt"]


IMPORTED_LATE = """
import sys
from shoal.training.mistakes import file_hook

class Found:
    def truncated(self, path, frame):
        print("emptied", path, file_hook.script_place(frame))

file_hook.watch(Found())
assert "safetensors" not in sys.modules
from safetensors.numpy import load_file, save_file
import numpy
save_file({"a": numpy.arange(3)}, "model.safetensors", metadata={"of": "numpy"})
assert load_file("model.safetensors")["a"].tolist() == [0, 1, 2]
"""


def test_safetensors_imported_after_the_watch_began_is_seen_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(IMPORTED_LATE)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "emptied model.safetensors script.py line 13\n", done.stderr


def test_reading_appending_and_creating_are_fine(tmp_path: Path, files: TruncatedFiles) -> None:
    with open(tmp_path / "lock", "x"):
        pass
    with open(tmp_path / "log", "a") as log:
        log.write("line\n")
    with open(tmp_path / "log") as log:
        assert log.read() == "line\n"
    with open(tmp_path / "log", "r+") as log:
        log.write("other")
    assert names(files) == []


def test_devices_pipes_and_what_can_be_made_again_are_fine(tmp_path: Path, files: TruncatedFiles) -> None:
    Path(os.devnull).write_text("nothing")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    pipe.write_text("line")
    os.close(reader)
    for name in (".cache", "cache", "data_cache", "__pycache__"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text("part")
    (tmp_path / "features.cache").write_text("part")
    assert names(files) == []
    (tmp_path / "cached_not").write_text("a file of its own")
    assert names(files) == ["cached_not"]


def test_what_a_child_process_writes_is_fine(tmp_path: Path, files: TruncatedFiles) -> None:
    child = os.fork()
    if child == 0:
        (tmp_path / "part").write_text("text")
        os._exit(len(files.waiting))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def written_by(file: str) -> Callable[[Path], None]:
    """A function that writes, as if it stood in this file."""
    space: dict[str, Any] = {}
    exec(compile("def write(path, call=None):\n    call() if call else open(path, 'w').close()\n", file, "exec"), space)
    write: Callable[[Path], None] = space["write"]
    return write


OURS = str(Path(shoal.__file__).parent)


def test_whose_code_it_is_decides(tmp_path: Path, files: TruncatedFiles) -> None:
    library = written_by(f"{sysconfig.get_path('purelib')}/library.py")
    shoal_itself, feed = written_by(f"{OURS}/checkpoint/part.py"), written_by(f"{OURS}/data/map_feed.py")
    library(tmp_path / "through a library")
    shoal_itself(tmp_path / "a checkpoint")
    feed(None, lambda: open(tmp_path / "by a data set", "w").close())  # type: ignore[call-arg,arg-type]
    shoal_itself(None, lambda: open(tmp_path / "by the script", "w").close())  # type: ignore[call-arg,arg-type]
    thread = threading.Thread(target=library, args=(tmp_path / "in a library's thread",))
    thread.start()
    thread.join()
    assert names(files) == ["through a library", "by the script"]


def test_a_file_counts_again_in_the_next_generation(tmp_path: Path) -> None:
    own = peers()
    files = TruncatedFiles(own)
    watch(files)
    try:
        for generation in (1, 1, 2):
            own.generation.number = generation
            (tmp_path / "best").write_text("text")
        own.is_new = True
        own.generation.number = 0
        (tmp_path / "newcomer").write_text("text")
    finally:
        unwatch()
    assert [event.generation for event in files.take()] == [1, 2]
    (tmp_path / "later").write_text("text")
    assert not files.waiting


def test_the_number_of_files_is_bounded(tmp_path: Path, files: TruncatedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncated_files, "MOST_FILES", 3)
    for number in range(10):
        (tmp_path / str(number)).write_text("text")
    assert names(files) == ["0", "1", "2"]


def test_a_fault_of_the_watch_never_keeps_a_file_from_being_written(tmp_path: Path) -> None:
    broken = TruncatedFiles(SimpleNamespace(is_new=False))  # type: ignore[arg-type]  # it has nothing that is asked for
    watch(broken)
    try:
        (tmp_path / "file").write_text("text")
        torch.save({}, tmp_path / "model.pt")
    finally:
        unwatch()
    assert (tmp_path / "file").read_text() == "text"
    assert not broken.waiting
