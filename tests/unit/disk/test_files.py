"""What a job makes on disk: the run directory and the token's file."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from shoal.disk import run_directory, texts
from shoal.disk.job_token import read_group_token, read_token, token_file
from shoal.errors import RunDirectoryExists, ShoalError, UsageError
from shoal.job_config import JobConfig, from_toml
from shoal.settings.all_reduce_settings import AllReduceSettings
from shoal.wire.texts import FOLDER, MISSING, NOT_PLAIN, anothers, readable_by_others
from support.launcher import write_token


def test_saved_settings_read_back_the_same(tmp_path: Path) -> None:
    config = JobConfig(
        workers=3,
        run_dir=str(tmp_path / 'a "b" ü'),
        sync_batchnorm=True,
        strategy_settings=(AllReduceSettings(bucket_mb=0.5),),
    )
    made = run_directory.create(config, "train.py")
    with made.lock:
        assert from_toml((made.path / "config.toml").read_text(), origin="test") == made.config == config
        assert (made.path / "logs").is_dir()


def test_default_name_has_the_script_in_it_and_is_never_given_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[Path] = []

    def make() -> None:
        directory = run_directory.create(JobConfig(), "dir/my train.py")
        directory.lock.close()
        made.append(directory.path)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8
    assert all("my-train" in path.name for path in made)
    assert sorted(tmp_path.glob("runs/*")) == sorted(tmp_path / path for path in made)
    assert all(tomllib.loads((path / "config.toml").read_text())["run-dir"] == str(path) for path in made)


def test_empty_directory_is_used_and_a_full_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    config = JobConfig(run_dir=str(tmp_path / "out"))
    run_directory.create(config, "train.py").lock.close()
    with pytest.raises(RunDirectoryExists, match=r"--run-dir.*--resume"):
        run_directory.create(config, "train.py")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["file", "full", "link", "dangling", "x" * 300])
def test_what_cannot_be_made_is_refused_before_in_the_same_words(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    for folder in ("full/of", "empty"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "dangling").symlink_to("absent")
    config = JobConfig(run_dir=str(tmp_path / name))
    with pytest.raises(ShoalError) as made:
        run_directory.create(config, "train.py")
    with pytest.raises(ShoalError) as seen:
        run_directory.refuse_taken(config)
    assert str(seen.value) == str(made.value)
    run_directory.refuse_taken(JobConfig(run_dir=str(tmp_path / "empty")))


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_name_of_a_file_is_refused_without_leaving_anything(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises((RunDirectoryExists, UsageError)):
        run_directory.create(JobConfig(run_dir=str(tmp_path / name)), "train.py")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_token_file_is_private_and_goes_when_the_job_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(KeyError), token_file("secret") as path:
        assert read_token(path) == "secret"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        raise KeyError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [None, b"", b"  \n", b"\xff\xfe", b"x" * 5000])
def test_unusable_token_files_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        write_token(path, "").write_bytes(content)
    with pytest.raises(UsageError, match=f"--token-file .*{texts.FILE_OF_JOB}"):
        read_token(path)


@pytest.mark.parametrize("name", ["absent", "token/below"])
def test_a_missing_token_file_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    write_token(tmp_path / "token", "secret")
    with pytest.raises(UsageError) as caught:
        read_token(tmp_path / name)
    said = texts.token_unreadable("--token-file", tmp_path / name, MISSING, texts.FILE_OF_JOB)
    assert str(caught.value) == said


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_token_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = write_token(tmp_path / "token", "secret")
    path.chmod(mode)
    with pytest.raises(UsageError, match=re.escape(readable_by_others(mode, path))):
        read_token(path)
    with pytest.raises(UsageError, match=f"--servers-token .*{re.escape(readable_by_others(mode, path))}"):
        read_group_token(path, named="--servers-token")


def test_a_token_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = Path("/etc/passwd")  # where this is no one who can give a file away
    if os.geteuid() == 0:
        path = write_token(tmp_path / "token", "secret")
        os.chown(path, 12345, -1)
    with pytest.raises(UsageError, match=re.escape(anothers(path.stat().st_uid))):
        read_token(path)


def test_a_token_file_that_would_have_to_be_waited_for_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(UsageError, match=NOT_PLAIN):
        read_token(tmp_path / "fifo")
    with pytest.raises(UsageError, match=NOT_PLAIN):
        read_token(Path("/dev/zero"))


def left_behind(runtime: Path) -> Path:
    """The token of a job that was killed with its guardian."""
    script = f"""
import os
os.environ["XDG_RUNTIME_DIR"] = {str(runtime)!r}
from shoal.disk.job_token import token_file
with token_file("secret") as path:
    print(path, flush=True)
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    return Path(done.stdout.strip())


def test_folders_of_killed_jobs_are_swept_and_those_of_running_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    stale = left_behind(tmp_path)
    assert stale.read_text() == "secret"
    with token_file("first") as running:
        assert not stale.parent.exists()
        with token_file("second"):
            assert running.read_text() == "first"
            assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    stale = left_behind(tmp_path)
    name = stale.parent.name
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (mine / "token").write_text("not a token of ours")
    stale.parent.rename(tmp_path / "kept")
    (tmp_path / name).symlink_to(mine)  # what a sweeper would follow
    other = name[:-1] + ("0" if name[-1] != "0" else "1")
    (tmp_path / other).mkdir(mode=0o755)  # others may have put something there
    (tmp_path / other / "token").write_text("x")
    filled = name[:-1] + ("2" if name[-1] != "2" else "3")
    (tmp_path / filled).mkdir(mode=0o700)
    (tmp_path / filled / "something").write_text("x")
    (tmp_path / ".shoal-young").mkdir(mode=0o700)
    (tmp_path / ".shoal-old").mkdir(mode=0o700)
    os.utime(tmp_path / ".shoal-old", (0, 0))
    with token_file("secret"):
        pass
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"mine", "kept", name, other, filled, ".shoal-young"}
    assert (mine / "token").read_text() == "not a token of ours"
    assert (tmp_path / filled / "something").exists()


def test_a_folder_is_no_token_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{FOLDER}; {texts.FILE_OF_JOB}"):
        read_token(tmp_path)


def is_free(path: Path) -> bool:
    """As `shoal runs` finds out whether a job runs."""
    with (path / "lock").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_run_directory_is_held_from_its_first_moment_until_all_who_have_the_lock_are_gone(tmp_path: Path) -> None:
    made = run_directory.create(JobConfig(run_dir=str(tmp_path / "out")), "train.py")
    assert not is_free(made.path)
    inherited = os.dup(made.lock.fileno())
    made.lock.close()
    assert not is_free(made.path)
    os.close(inherited)
    assert is_free(made.path)


def test_a_run_directory_in_use_cannot_be_held_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "LOCK_SECONDS", 0.1)
    made = run_directory.create(JobConfig(run_dir=str(tmp_path / "out")), "train.py")
    with made.lock, pytest.raises(UsageError, match=f"the job in {made.path} is still running"):
        run_directory.hold(made.path)
    run_directory.hold(made.path).close()


def test_a_lock_that_is_about_to_be_free_is_waited_for(tmp_path: Path) -> None:
    """A coordinator outlives a killed launcher by a moment."""
    made = run_directory.create(JobConfig(run_dir=str(tmp_path / "out")), "train.py")
    later = threading.Timer(0.3, made.lock.close)
    later.start()
    run_directory.hold(made.path).close()
    later.join()


def test_settings_of_a_resumed_job_replace_the_old_ones_and_nothing_else_changes(tmp_path: Path) -> None:
    made = run_directory.create(JobConfig(run_dir=str(tmp_path / "out"), workers=4), "train.py")
    (made.path / "events.jsonl").write_text("kept\n")
    config = JobConfig(run_dir=str(made.path), resume=str(made.path), workers=2)
    again = run_directory.reopen(config, made.lock)
    made.lock.close()
    assert again.path == made.path
    assert from_toml((made.path / "config.toml").read_text(), origin="test") == config
    assert sorted(path.name for path in made.path.iterdir()) == ["config.toml", "events.jsonl", "lock", "logs"]
    assert (made.path / "events.jsonl").read_text() == "kept\n"
