"""The private folder of an agent: agents that start together keep theirs, and what killed agents left is removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.engines.nodes.agent_files import LOCK, PREFIX, UNFINISHED, UNFINISHED_SECONDS, AgentFiles


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@contextlib.contextmanager
def agent_files() -> Iterator[AgentFiles]:
    files = AgentFiles()
    try:
        yield files
    finally:
        files.remove()


def test_an_agent_that_starts_meanwhile_leaves_a_folder_that_is_being_made(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other agent looks between the making of the lock's file and the locking."""
    lock, others = fcntl.flock, []

    def flock(file: int, how: int) -> None:
        if not others:
            others.append(None)
            with agent_files():
                pass
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with agent_files() as files:
        assert files.folder.is_dir() and (files.folder / LOCK).is_file()
        with agent_files() as later:
            assert files.folder.is_dir() and later.folder != files.folder
    assert others and not list(parent.iterdir())


MAKE_AND_DIE = """
import os
from shoal.engines.nodes.agent_files import AgentFiles
AgentFiles()
os._exit(1)
"""


def test_what_a_killed_agent_left_is_removed_by_the_next(parent: Path) -> None:
    subprocess.run([sys.executable, "-c", MAKE_AND_DIE], env={**os.environ}, check=False)
    [left] = parent.iterdir()
    assert left.name.startswith(PREFIX)
    with agent_files():
        assert not left.exists()


@pytest.mark.parametrize("has_lock", [True, False])
@pytest.mark.parametrize("is_old", [True, False])
def test_a_folder_that_was_never_finished_is_removed_when_it_is_old(parent: Path, is_old: bool, has_lock: bool) -> None:
    left = parent / f"{UNFINISHED}cut-short"
    left.mkdir(mode=0o700)
    if has_lock:
        (left / LOCK).touch()
    made = time.time() - (2 * UNFINISHED_SECONDS if is_old else 0.0)
    os.utime(left, (made, made))
    with agent_files():
        assert left.exists() is not is_old
