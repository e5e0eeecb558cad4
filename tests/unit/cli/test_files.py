"""What a job makes on disk: the run directory and the token's file."""

from __future__ import annotations

import stat
import threading
import tomllib
from pathlib import Path

import pytest

from shoal.cli import run_directory
from shoal.cli.token_file import read_token, token_file
from shoal.errors import RunDirectoryExists, UsageError
from shoal.job_config import JobConfig, from_toml


def test_saved_settings_read_back_the_same(tmp_path: Path) -> None:
    config = JobConfig(workers=3, run_dir=str(tmp_path / 'a "b" ü'), bucket_mb=0.5, sync_batchnorm=True)
    path, used = run_directory.create(config, "train.py")
    assert from_toml((path / "config.toml").read_text(), origin="test") == used == config
    assert (path / "logs").is_dir()


def test_default_name_has_the_script_in_it_and_is_never_given_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[Path] = []
    threads = [
        threading.Thread(target=lambda: made.append(run_directory.create(JobConfig(), "dir/my train.py")[0]))
        for _ in range(8)
    ]
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
    run_directory.create(config, "train.py")
    with pytest.raises(RunDirectoryExists, match="--run-dir"):
        run_directory.create(config, "train.py")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


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


@pytest.mark.parametrize("content", [None, b"", b"  \n", b"\xff\xfe"])
def test_unusable_token_files_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="--token-file"):
        read_token(path)
