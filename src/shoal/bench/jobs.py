"""Whole jobs that benchmarks run: quiet but for lines of progress, with their results and events."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from shoal.errors import ScriptFailed
from shoal.events import Record
from shoal.launching.launch import launch

PROGRESS = "progress: "  # before lines of a worker that are for the user
RESULTS = "results.json"  # beside the run directory: what the first worker found
OUTPUT = "output.txt"  # beside the run directory: what a job in the background wrote
END_SECONDS = 20.0  # for such a job to end after Ctrl-C
SIGNALLED = 128  # exit codes above: Ctrl-C and other signals
QUOTED = 500  # characters of a failed job's output that its error repeats


def run_job(folder: Path, script: Path, *arguments: str, **settings: Any) -> list[Record]:
    """Run a job to its end, with `folder/run` as its run directory. Returns its record of events.

    A job that fails is an error of the benchmark; one that a signal ended ends the benchmark with the same exit code.
    """
    output = _ProgressOnly(sys.stdout)
    with contextlib.redirect_stdout(output):
        ended = launch(script, *arguments, **{"run_dir": str(folder / "run"), "progress": "none", **settings})
    code = ended.exit_code
    if code > SIGNALLED:
        sys.exit(code)  # the launcher has said why
    if code:
        quoted = output.kept.strip()[-QUOTED:]
        raise ScriptFailed(f"a job of the benchmark, {script.name}, ended with exit code {code}: {quoted}")
    lines = (folder / "run" / "events.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Record) for line in lines]


def results(folder: Path) -> Any:
    """What `leave_results` left in the folder."""
    try:
        return json.loads((folder / RESULTS).read_bytes())
    except FileNotFoundError:
        raise ScriptFailed("a job of the benchmark ended without results") from None


def leave_results(folder: Path, found: object) -> None:
    """For the first worker of a job."""
    (folder / RESULTS).write_text(json.dumps(found), encoding="utf-8")


@contextlib.contextmanager
def job_in_background(
    folder: Path, options: Sequence[str], script: Path, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """A job that runs beside the benchmark, with `folder/run` as its run directory, and ends with the block."""
    line = [sys.executable, "-m", "shoal", "run", "--run-dir", str(folder / "run"), *options, str(script), *arguments]
    with (folder / OUTPUT).open("w", encoding="utf-8") as output:
        process = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
        process.kill()
        process.wait()


def output_of(folder: Path) -> str:
    """The last of what a job in the background wrote."""
    return (folder / OUTPUT).read_text(encoding="utf-8", errors="replace").strip()[-4 * QUOTED :]


class _ProgressOnly(io.TextIOBase):
    """Lets lines of progress through and keeps the rest: libraries print more than that."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.kept = ""

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            _, mark, progress = line.partition(PROGRESS)
            if mark:
                self._out.write(f"  {progress.rstrip()}\n")
            else:
                self.kept = (self.kept + line)[-QUOTED:]
        return len(text)

    def flush(self) -> None:
        self._out.flush()

    def fileno(self) -> int:
        return self._out.fileno()
