"""What the launcher writes: workers' lines with their numbers, its own lines, and one message at the end.

It wraps the display of `watch` and adds what only the launcher knows: which worker printed a line, that the reader of
standard output may leave while the job runs, and that nobody wants the traceback of a script stopped with Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Sequence

from shoal.errors import ScriptFailed
from shoal.events import Event, StorageFailed, StorageRestored
from shoal.launching import texts
from shoal.launching.processes.specs import Job
from shoal.launching.supervision.orders import FinishJob
from shoal.watch import Display, closing_line
from shoal.watch.wording import raised_at

SHOWN_LINES = 15  # of a lost worker's output in the final message
TRACEBACK = "Traceback (most recent call last):"


class Screen:
    def __init__(self, display: Display, *, workers: int) -> None:
        self._display = display
        self._prefixed = workers > 1
        self._held: dict[int, list[str]] | None = None  # lines since the workers were interrupted, by worker
        self._unwritten: dict[str, None] = {}  # files of the run directory that cannot be written
        self._broken = False  # standard output is gone
        self._broken_told = False

    def show(self, event: Event, time: float) -> None:
        if isinstance(event, StorageFailed):
            self._unwritten[event.file] = None
        elif isinstance(event, StorageRestored):
            self._unwritten.pop(event.file, None)
        self._write(lambda: self._display.show(event, time))

    def say(self, *lines: str) -> None:
        self._write(lambda: self._display.print(*lines))

    def worker_lines(self, worker: int, lines: Sequence[str]) -> None:
        if self._held is not None:
            self._held.setdefault(worker, []).extend(lines)
        elif lines:
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
            record = [] if finish.text else [f"the record is in {job.run_dir}"]  # otherwise the final message says it
            with contextlib.suppress(OSError):
                record[:0] = filter(None, [closing_line(job.run_dir)])
            self._write(lambda: self._display.summarize(*record))
        incomplete = [f"shoal: {file} is incomplete: it could not be written to the end" for file in self._unwritten]
        with contextlib.suppress(OSError):
            for line in [*final_message(finish, job, last_lines), *incomplete]:
                print(line, file=sys.stderr, flush=True)

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


def _how_to_go_on(job: Job) -> str:
    """How to resume, if the run directory itself holds a checkpoint."""
    has_one = any((job.run_dir / "checkpoints").glob("step-*/manifest.json"))
    return f"; `shoal run --resume {job.run_dir}` goes on" if has_one else ""


def final_message(finish: FinishJob, job: Job, last_lines: Sequence[str]) -> list[str]:
    """What the user reads last, on standard error. Nothing when all went well."""
    if not finish.error:
        return [f"shoal: {finish.text}; the record is in {job.run_dir}{_how_to_go_on(job)}"] if finish.text else []
    message = [f"shoal: error: {finish.text}"]
    if finish.lost_worker is not None:
        log = job.run_dir / "logs" / f"worker-{finish.lost_worker}.log"
        shown = last_lines[-SHOWN_LINES:]
        if shown:
            message += [f"the last lines of worker {finish.lost_worker}'s output (all of it is in {log}):"]
            message += [f"  {line}" for line in shown]
        else:
            message += [f"worker {finish.lost_worker} had printed nothing"]
    elif finish.error == ScriptFailed.__name__:
        if "\n" not in finish.text:
            message[0] += f"; what the workers printed is in {job.run_dir / 'logs'}"
        elif TRACEBACK in finish.text:
            message.append(
                f"shoal: {texts.script_raised(raised_at(finish.text), _worker_in(finish.text), job.run_dir)}"
            )
    return message


def _worker_in(text: str) -> str:
    """The number of the worker whose failure the coordinator describes; empty if it names none."""
    named = re.match(r"the script failed on worker (\d+)", text)
    return named[1] if named else ""
