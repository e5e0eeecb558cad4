"""The first event of a job's record: what is started, and in which version.

The version is the commit that the script's folder is at, and whether files differ from it. It is asked of git, which is
given a few seconds. A folder that is in no repository, a machine without git and a repository that takes too long have
no version: nothing about a job depends on it. By the digest of the script's file, whoever joins by hand learns whether
theirs is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.events import JobStarted
from shoal.files import read_plain
from shoal.job_config import JobConfig
from shoal.settings.all_reduce_settings import AllReduceSettings
from shoal.settings.codec_settings import CodecSettings

PATIENCE = 5.0  # seconds
MOST_BYTES = 16 * 2**20  # of a script
LONGEST_COMMIT = 64  # characters of a hash
# One process tells both. Files that were never added are left out: a job's own run directory is often among them.
QUESTION = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=dirty")
COMMIT = "# branch.oid "


@dataclass(frozen=True)
class ScriptVersion:
    commit: str = ""  # empty: not known
    is_dirty: bool = False


def first_event(config: JobConfig, script: str, arguments: Sequence[str]) -> JobStarted:
    """The event for a job that starts now. `script` is empty where it is not known."""
    version = script_version(script) if script else ScriptVersion()
    return JobStarted(
        script=as_text(script),
        arguments=tuple(map(as_text, arguments)),
        workers=config.workers,
        strategy=config.strategy,
        schedule=config.of(AllReduceSettings).schedule,
        codec=config.of(CodecSettings).codec,
        seed=config.seed,
        commit=version.commit,
        is_dirty=version.is_dirty,
        digest=script_digest(script),
    )


def script_digest(script: str) -> str:
    """In hex; empty where the file cannot be read, or is too large for a script."""
    with contextlib.suppress(OSError, ValueError):
        return hashlib.sha256(read_plain(Path(script), MOST_BYTES)).hexdigest() if script else ""
    return ""


def as_text(argument: str) -> str:
    """Command lines may hold bytes that are no text; the record is text."""
    return argument.encode("utf-8", "backslashreplace").decode()


def script_version(script: str) -> ScriptVersion:
    """The version of the repository in which the script lies."""
    folder = Path(script).parent
    try:
        # Without optional locks it changes nothing; a file watcher that the repository names is not started.
        command = ("git", "-C", str(folder), "--no-optional-locks", "-c", "core.fsmonitor=false", *QUESTION)
        found = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=True
        ).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return ScriptVersion()
    return version_in(found.decode("utf-8", "replace"))


def version_in(status: str) -> ScriptVersion:
    """Read git's answer: lines that begin with `#` are about the branch, all others about files that differ."""
    lines = status.splitlines()
    commits = [line.removeprefix(COMMIT) for line in lines if line.startswith(COMMIT)]
    if not commits or not _is_hash(commits[0]):  # "(initial)": nothing is committed yet
        return ScriptVersion()
    return ScriptVersion(commits[0], is_dirty=any(line and not line.startswith("#") for line in lines))


def _is_hash(text: str) -> bool:
    return 0 < len(text) <= LONGEST_COMMIT and all(character in "0123456789abcdef" for character in text)
