"""What the launcher writes: what starts, workers' lines with their numbers, its own lines, and how the job ended.

The first and the last line, and errors, go to standard error; what workers print, and progress, to standard output. The
screen wraps the display of `watch` and adds what only the launcher knows: which worker printed a line, that the reader
of standard output may leave while the job runs, and that nobody wants the traceback of a script stopped with Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.entry import texts as entry_texts
from shoal.entry.function_script import title_of
from shoal.entry.lone_steps import OWN_SHARE
from shoal.environment import copies_are_meant
from shoal.errors import ScriptFailed
from shoal.events import Event, StorageFailed, StorageRestored
from shoal.job_config import JobConfig
from shoal.launching import texts
from shoal.launching.processes.specs import Job
from shoal.launching.script_source import source_of
from shoal.launching.supervision.orders import FinishJob
from shoal.settings.parameter_server_settings import ParameterServerSettings
from shoal.watch.incident_words import closing_line
from shoal.watch.screen.display import Display, announce
from shoal.watch.wording import first_line, raised_at, span

SHOWN_LINES = 15  # of a lost worker's output in the final message
QUIET_START = 2.0  # seconds without a line after which it is said that the workers are starting
STILL_STARTING = 15.0  # seconds until there is another such line; each such line doubles them
LONGEST_PAUSE = 600.0  # up to so many
TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True)
class Closing:
    """What a job had come to when it ended."""

    seconds: float  # since its first line
    steps: int = 0
    has_joined: bool = True  # a worker's script called shoal.main


class Screen:
    def __init__(self, display: Display, *, workers: int) -> None:
        self._display = display
        self._prefixed = workers > 1
        self._began = time.monotonic()
        self._is_starting = True  # there was no step yet, and no worker has printed anything
        self._next_word = QUIET_START  # seconds after the beginning
        self._pause = STILL_STARTING  # seconds from the next word to the one after it
        self._held: dict[int, list[str]] | None = None  # lines since the workers were interrupted, by worker
        self._unwritten: dict[str, None] = {}  # files of the run directory that cannot be written
        self._broken = False  # standard output is gone
        self._broken_told = False

    def show(self, event: Event, at: float) -> None:
        if isinstance(event, StorageFailed):
            self._unwritten[event.file] = None
        elif isinstance(event, StorageRestored):
            self._unwritten.pop(event.file, None)
        self._write(lambda: self._display.show(event, at))

    def say_if_starting(self, progress: str, now: float) -> None:
        """A word while nothing else is shown, and again ever more seldom: some scripts read data for minutes.

        Plain scripts of torch.distributed never have steps, and may print nothing for hours.
        """
        self._is_starting = self._is_starting and not self._display.board.step
        waited = now - self._began
        if self._is_starting and self._held is None and waited >= self._next_word:
            is_first, self._next_word = self._next_word == QUIET_START, waited + self._pause
            self._pause = min(LONGEST_PAUSE, 2 * self._pause)
            announce(progress, texts.STARTING if is_first else texts.still_starting(span(waited)))

    def say(self, *lines: str) -> None:
        self._write(lambda: self._display.print(*lines))

    def worker_lines(self, worker: int, lines: Sequence[str]) -> None:
        if self._held is not None:
            self._held.setdefault(worker, []).extend(lines)
        elif lines:
            self._is_starting = False
            prefix = f"[worker {worker}] " if self._prefixed else ""
            self._write(lambda: self._display.print(*(prefix + line for line in lines)))

    def hold(self) -> None:
        """Keep workers' lines back until each worker ends, to leave out the tracebacks that Ctrl-C causes."""
        self._held = {} if self._held is None else self._held

    def worker_ended(self, worker: int) -> None:
        if self._held is not None:
            lines, held = without_interrupt(self._held.pop(worker, [])), self._held
            self._held = None
            self.worker_lines(worker, lines)
            self._held = held

    def lost_reader(self) -> bool:
        """True once, after a write to standard output failed."""
        if self._broken and not self._broken_told:
            self._broken_told = True
            return True
        return False

    def close(self) -> None:
        self._write(self._display.close)

    def conclude(self, finish: FinishJob, job: Job, last_lines: Sequence[str]) -> None:
        """The summary, or the one message that says why there is none."""
        self.close()
        if not finish.error:
            incidents: list[str] = []
            with contextlib.suppress(OSError):
                incidents += filter(None, [closing_line(job.run_dir)])
            self._write(lambda: self._display.summarize(*incidents))
        incomplete = [f"shoal: {entry_texts.incomplete(file)}" for file in self._unwritten]
        with contextlib.suppress(OSError):
            for line in [*final_message(finish, job, last_lines), *incomplete]:
                print(line, file=sys.stderr, flush=True)

    @property
    def closing(self) -> Closing:
        board = self._display.board
        return Closing(time.monotonic() - self._began, board.step, bool(board.joined))

    def _write(self, action: Callable[[], None]) -> None:
        """A pipe whose reader left, or a closed terminal, ends the output but not the launcher."""
        if self._broken:
            return
        try:
            action()
        except OSError:
            self._broken = True
            # What is still in Python's buffer would fail again at exit, with a traceback.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


def without_interrupt(lines: Sequence[str]) -> Sequence[str]:
    """Lines without the traceback that a KeyboardInterrupt leaves at their end."""
    if TRACEBACK in lines and any(line.startswith("KeyboardInterrupt") for line in lines[-2:]):
        return lines[: lines.index(TRACEBACK)]
    return lines


def gathering(config: JobConfig, title: str) -> str:
    """What is about to start on other machines, before any of them is reached. `title`: the script's, or function's."""
    servers = config.of(ParameterServerSettings).server_count
    return texts.gathering(config.workers, servers, title, config.on)


def opening(job: Job) -> str:
    """What starts, and where its record is: the first line of a job."""
    servers = job.config.of(ParameterServerSettings).server_count
    title = title_of(job.script, job.arguments)
    if job.config.resume:
        return texts.going_on(job.config.workers, servers, title, job.run_dir)
    return texts.opening(job.config.workers, servers, title, job.run_dir)


def copies_warning(job: Job, closing: Closing) -> str:
    """A warning of copies that had nothing to do with each other; empty if it is not certain that they had not.

    Scripts that load torch say it themselves (`entry.lone_steps`).
    """
    if job.config.workers < 2 or closing.has_joined or copies_are_meant():
        return ""
    source = source_of(Path(job.script))
    if not source.is_without_torch or source.mentions(OWN_SHARE.pattern):
        return ""
    return entry_texts.ran_as_copies(job.script, job.config.workers)


def has_checkpoint(job: Job) -> bool:
    """Whether the run directory itself holds a checkpoint."""
    return any((job.run_dir / "checkpoints").glob("step-*/manifest.json"))


def verdict(finish: FinishJob, job: Job, closing: Closing, *, can_resume: bool) -> str:
    """How the job ended, and what to do next: its last line."""
    if not finish.error:
        if finish.text:  # somebody stopped it
            return texts.stopped(finish.text, job.run_dir, can_resume=can_resume)
        return texts.finished(span(closing.seconds), closing.steps, job.run_dir)
    where = first_line(finish.text)
    how = texts.FAILED
    if finish.error == ScriptFailed.__name__ and TRACEBACK in finish.text:
        how = texts.script_raised(raised_at(finish.text), where.removeprefix("the script failed ").rstrip(":"))
    named = re.match(r".*\bworker (\d+)", where)
    worker = finish.lost_worker if finish.lost_worker is not None else named and named[1]
    look_at = job.run_dir / "logs" / ("" if worker is None else f"worker-{worker}.log")
    go_on = f"shoal run --resume {shlex.quote(str(job.run_dir))}" if can_resume else ""
    return texts.failed(texts.FailureWords(how, span(closing.seconds), closing.steps, look_at, go_on))


def final_message(finish: FinishJob, job: Job, last_lines: Sequence[str]) -> list[str]:
    """Why the job failed, on standard error, before the last line. Nothing when all went well."""
    if not finish.error:
        return []
    message = [f"shoal: error: {finish.text}"]
    if finish.lost_worker is not None:
        log = job.run_dir / "logs" / f"worker-{finish.lost_worker}.log"
        shown = last_lines[-SHOWN_LINES:]
        if shown:
            message += [f"the last lines of worker {finish.lost_worker}'s output (all of it is in {log}):"]
            message += [f"  {line}" for line in shown]
        else:
            message += [f"worker {finish.lost_worker} had printed nothing"]
    return message
