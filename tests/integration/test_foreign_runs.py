"""`shoal run --resume` of a run directory that somebody else may have written: whose it is, and what it runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from shoal.disk import texts
from support.launcher import shoal, write_script

# Saves at step 10, and leaves.
ONCE = "print('ran', sys.argv[1:])\nsave(10)\nleave(10)\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a script and a run of it, in `out`, that has a checkpoint."""
    folder = tmp_path_factory.mktemp("saved")
    write_script(folder, ONCE, saves=True)
    assert shoal(folder, "run", "--run-dir", "out", "script.py", "--name", "a b").code == 0
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def give_away(path: Path) -> Callable[[Path], str]:
    """To another user where this one may; else to everybody. What should be said about it, by its path."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        return partial(texts.belongs_to, owner="user 12345")
    path.chmod(0o777)
    return texts.writable_by_all


@pytest.mark.parametrize(
    "file", ["", *(pytest.param(file, marks=pytest.mark.long) for file in ("events.jsonl", "config.toml"))]
)
def test_resuming_another_users_run_says_which_script_it_is_about_to_run(file: str, folder: Path) -> None:
    whose = give_away(folder / "out" / file)
    outcome = shoal(folder, "run", "--resume", "out")
    assert outcome.code == 0, outcome.stderr
    [line] = outcome.stderr.splitlines()
    expected = f"shoal: {whose(Path('out') / file)}; about to run {folder / 'script.py'} --name 'a b'"
    assert line == expected
    assert "ran ['--name', 'a b']" in outcome.stdout


def test_it_is_said_before_anything_runs_and_of_a_script_that_is_named_too(folder: Path) -> None:
    give_away(folder / "out")
    shutil.rmtree(folder / "out" / "checkpoints")  # so that nothing does
    outcome = shoal(folder, "run", "--resume", "out", "script.py", "\x1b[2J")
    assert outcome.code == 9
    said, error = outcome.stderr.splitlines()
    assert f"about to run {folder / 'script.py'} " in said
    assert "\x1b" not in said
    assert "there is no checkpoint" in error


def test_nothing_is_said_of_ones_own(folder: Path) -> None:
    outcome = shoal(folder, "run", "--resume", "out")
    assert (outcome.code, outcome.stderr) == (0, "")


REFUSED = [
    ("config.toml", 2, "config.toml cannot be read: it is a FIFO, no plain file"),
    ("events.jsonl", 2, "events.jsonl, which names the script, cannot be read: it is a FIFO, no plain file"),
    ("lock", 2, "lock in it cannot be written: it is a FIFO, no plain file"),
    ("checkpoints/step-00000010-g1/manifest.json", 9, texts.no_checkpoint("out/checkpoints")),
]
DONE_WITHOUT = ["join", "decisions.sqlite", "logs/worker-0.log", "logs/coordinator.log"]


@pytest.mark.parametrize(
    ("file", "code", "words"),
    [*REFUSED, *(pytest.param(file, 0, "", marks=pytest.mark.long) for file in DONE_WITHOUT)],
)
def test_a_fifo_in_place_of_a_file_is_not_waited_for(file: str, code: int, words: str, folder: Path) -> None:
    path = folder / "out" / file
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    outcome = shoal(folder, "run", "--resume", "out")
    assert outcome.code == code, outcome.stderr
    assert words in outcome.stderr
    assert len(outcome.stderr.splitlines()) == bool(code)


def test_a_record_that_cannot_be_written_is_said_and_the_job_goes_on(folder: Path) -> None:
    (folder / "out" / "events.jsonl").unlink()
    os.mkfifo(folder / "out" / "events.jsonl")
    outcome = shoal(folder, "run", "--resume", "out", "script.py")
    assert outcome.code == 0, outcome.stderr
    assert "out/events.jsonl cannot be written: it is a FIFO, no plain file" in outcome.stdout
    assert "out/events.jsonl is incomplete" in outcome.stderr
