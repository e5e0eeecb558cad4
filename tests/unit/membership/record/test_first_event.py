"""The commit of a script's folder in the record of its job."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shoal.job_config import JobConfig
from shoal.membership.record import first_event as module
from shoal.membership.record.first_event import ScriptVersion, first_event, script_digest, script_version, version_in


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(("git", "-C", folder, *who, *arguments), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_commit_and_changes_of_the_scripts_repository(tmp_path: Path) -> None:
    script = tmp_path / "inside" / "train.py"
    script.parent.mkdir()
    script.write_text("pass\n")
    git(tmp_path, "init", "-q")
    assert script_version(str(script)) == ScriptVersion(), "nothing is committed yet"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (script.parent / "runs").mkdir()  # what a job writes is no change of its script
    (script.parent / "runs" / "new").write_text("")
    assert script_version(str(script)) == ScriptVersion(commit, is_dirty=False)
    script.write_text("raise\n")
    told = first_event(JobConfig(workers=2), str(script), ("--lr", "\udcff"))
    assert (told.commit, told.is_dirty, told.arguments) == (commit, True, ("--lr", "\\udcff"))


def test_no_repository_and_no_git_are_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert script_version(str(tmp_path / "train.py")) == ScriptVersion()
    assert script_version("a\0b/train.py") == ScriptVersion()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert script_version(str(tmp_path / "train.py")) == ScriptVersion()
    assert first_event(JobConfig(), "", ()).commit == ""


def test_a_repository_that_takes_too_long_is_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "git"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    assert script_version("train.py") == ScriptVersion()


def test_an_answer_that_is_not_gits_is_no_version() -> None:
    assert version_in("# branch.oid (initial)\n") == ScriptVersion()
    assert version_in("# branch.oid <b>\n") == ScriptVersion()
    assert version_in("something else\n") == ScriptVersion()


def test_the_digest_is_of_the_file_and_a_script_that_cannot_be_read_has_none(tmp_path: Path) -> None:
    script, copy = tmp_path / "train.py", tmp_path / "copy.py"
    script.write_text("pass\n")
    copy.write_text("pass\n")
    told = first_event(JobConfig(), str(script), ())
    assert told.digest == script_digest(str(copy)) != ""
    copy.write_text("pass \n")
    assert script_digest(str(copy)) != told.digest
    os.mkfifo(tmp_path / "fifo")
    for unreadable in ("", "absent.py", "a\0b.py", str(tmp_path), str(tmp_path / "fifo")):
        assert script_digest(unreadable) == ""
