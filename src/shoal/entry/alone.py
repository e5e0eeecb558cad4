"""A script that runs alone, from its settings to its report: a job of one worker, in the script's own process.

With nothing asked it writes nothing to disk. A record is kept from the beginning where the script gives `run_dir`,
`checkpoint_every`, `checkpoint_to`, `resume` or `open` to `shoal.main`, and from its first `run.save` on otherwise;
what came before has waited in memory. Not here: what is written (`membership.inner_coordinator`), where (`disk`), and
the script's course (`lone_script`).
"""

from __future__ import annotations

import collections
import contextlib
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from shoal.checkpoint.stores.opening import store_for
from shoal.checkpoint.stores.store import Store
from shoal.disk import checkpoint_place, run_directory
from shoal.disk.aftermath import log_failure, put_in_order, record_size
from shoal.disk.find_run import LAST, runs_under
from shoal.disk.last_report import leave_report
from shoal.disk.resuming import recorded_job, resumed_settings
from shoal.disk.run_directory import RunDirectory
from shoal.disk.settings_merge import merge
from shoal.entry import texts
from shoal.entry.stop_signals import StopSignals
from shoal.environment import likely_typos
from shoal.errors import CheckpointUnusable, Interrupted, ScriptFailed, ShoalError, UsageError
from shoal.events import Advised, AnyEvent, CheckpointPublished, JobEnded, WorkerFailed
from shoal.job_config import JobConfig, from_mapping, read_toml
from shoal.membership.record.first_event import first_event
from shoal.settings.given_by_script import ORIGIN, Alone, check_alone, treatment_of
from shoal.strategies.peers.solo_peers import SoloPeers
from shoal.watch.incident_words import closing_line
from shoal.watch.screen.display import announce, open_display
from shoal.watch.wording import span

ASKS_FOR_A_RECORD = frozenset({"run-dir", "checkpoint-every", "checkpoint-to", "resume", "open"})


@dataclass(frozen=True)
class AloneSettings:
    config: JobConfig
    is_recorded: bool  # from the beginning
    advice: str = ""  # worth telling once the record has begun


def script_path() -> str:
    """The file that Python was started with; empty where there is none."""
    named = sys.argv[0] if sys.argv else ""
    return named if named and Path(named).is_file() else ""


def settings_alone(options: Mapping[str, Any]) -> AloneSettings:
    """Raises UsageError for what cannot be honoured."""
    wanted = from_mapping(options, origin=ORIGIN)
    named = {name.replace("_", "-") for name in options}
    values = {name: value for name, value in wanted.values().items() if name in named}
    check_alone(values, JobConfig().values(), script=script_path() or "SCRIPT")
    is_recorded = any(values.get(name) not in (None, "", False, "never") for name in ASKS_FOR_A_RECORD)
    advice = ""
    if wanted.resume == LAST:
        found = _last_run(wanted)
        advice = "" if found else texts.nothing_to_resume(wanted.run_dir)
        options = {**options, "resume": found}
    merged_over = partial(merge, options, file=None, origin=ORIGIN)
    config = merged_over()
    if config.resume:
        config = resumed_settings(config, lambda base: merged_over(base=_fitting_alone(base)))
    return AloneSettings(config, is_recorded, advice)


def _fitting_alone(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the job that is resumed, without those that need other processes."""
    return {name: value for name, value in recorded.items() if treatment_of(name).alone is not Alone.REFUSED}


def _last_run(wanted: JobConfig) -> str:
    """The run that `resume="last"` goes on with: the newest of this script that has a checkpoint. Empty: none."""
    runs = [Path(wanted.run_dir)] if wanted.run_dir else runs_under(run_directory.PARENT)
    for path in runs:
        with contextlib.suppress(UsageError, CheckpointUnusable):
            if not wanted.run_dir and Path(recorded_job(path)[0]).resolve() != Path(script_path()).resolve():
                continue
            place = wanted.checkpoint_to or str(read_toml(path / run_directory.CONFIG).get("checkpoint-to", ""))
            checkpoint_place.require_checkpoint(JobConfig(run_dir=str(path), checkpoint_to=place))
            return str(path)
    return ""


class AloneJob:
    """What surrounds a script that runs alone. `end` must be called, however the script ends."""

    def __init__(self, chosen: AloneSettings) -> None:
        """Raises where the run directory cannot be made or held, or a checkpoint is missing, before anything starts."""
        self.config = chosen.config
        self._started = time.time()
        self._directory: RunDirectory | None = None
        self._record_start = 0  # bytes of the record before this run
        self._log: Path | None = None  # with the traceback of what the script raised
        self._thread = threading.get_ident()  # the script's
        self._unshown: collections.deque[tuple[AnyEvent, float]] = collections.deque()
        self._is_late = not chosen.is_recorded  # the first checkpoint says where it went
        self.signals = StopSignals()
        kept = checkpoint_place.Keeping()
        if chosen.is_recorded:
            self._directory = self._open_directory()
            with self._freed_on_error():
                kept = checkpoint_place.keeping(self.config, is_restart=False)
        for doubt in likely_typos():
            sys.stderr.write(f"shoal: warning: {doubt}\n")
        if self.config.threads:
            torch.set_num_threads(self.config.threads)
        self._display = open_display(self.config.progress, workers=1)
        self.peers = SoloPeers(self._show, self.run_dir, after_generation=kept.after_generation)
        if kept.publisher is not None:
            self.peers.coordinator.publish_with(kept.publisher)
        self.peers.begin(first_event(self.config, script_path(), sys.argv[1:]))
        if chosen.advice:
            self.peers.report(Advised(worker=None, text=chosen.advice))
        if self._directory is not None:
            self.signals.heed(self.peers.ask_to_stop)

    @property
    def run_dir(self) -> Path | None:
        return None if self._directory is None else self._directory.path

    @property
    def store(self) -> Store | None:
        """Where checkpoints go and come from; None where there are none yet."""
        if self._directory is None or not (self.config.checkpoints.at_end or self.config.resume):
            return None
        return store_for(self._directory.path, self.config.checkpoint_to)

    def open_place(self) -> tuple[Store, JobConfig]:
        """The script asks for its first checkpoint and there is no run directory yet: make one. Raises UsageError."""
        self._directory = self._open_directory()
        with self._freed_on_error():
            publisher = checkpoint_place.keeping(self.config, is_restart=False).publisher
            store = store_for(self._directory.path, self.config.checkpoint_to)
        assert publisher is not None
        self.peers.coordinator.publish_with(publisher)
        self.peers.coordinator.keep_record_in(self._directory.path)
        self.signals.heed(self.peers.ask_to_stop)
        return store, self.config

    def _open_directory(self) -> RunDirectory:
        if not self.config.resume:
            if self.config.checkpoint_to and self.config.run_dir:
                checkpoint_place.refuse_anothers(self.config)
            made = run_directory.create(self.config, script_path() or "script")
            self.config = made.config
            return made
        lock = run_directory.hold(Path(self.config.run_dir))
        try:
            checkpoint_place.require_checkpoint(self.config)
            self._record_start = record_size(Path(self.config.run_dir))
            return run_directory.reopen(self.config, lock)
        except ShoalError:
            lock.close()
            raise

    @contextlib.contextmanager
    def _freed_on_error(self) -> Iterator[None]:
        try:
            yield
        except ShoalError:
            assert self._directory is not None
            self._directory.lock.close()
            raise

    def _show(self, event: AnyEvent, at: float) -> None:
        """The script prints to the same stream, which loses text where two threads write at once: other threads, such
        as the one that writes checkpoints, leave what they have to say to the script's.
        """
        self._unshown.append((event, at))
        if threading.get_ident() == self._thread:
            self._catch_up()

    def _catch_up(self) -> None:
        while self._unshown:
            self._show_now(*self._unshown.popleft())

    def _show_now(self, event: AnyEvent, at: float) -> None:
        self._display.show(event, at)
        if self._is_late and isinstance(event, CheckpointPublished):
            self._is_late = False
            self._display.print(texts.checkpoint_went(event.step, str(self.run_dir), self.how_to_go_on()))

    def how_to_go_on(self) -> str:
        """The command that goes on with this script from its newest checkpoint."""
        where = "" if script_path() else " SCRIPT"
        return f"shoal run --resume {shlex.quote(str(self.run_dir))}{where}"

    # The end

    def failed(self, error: BaseException, text: str, *, step: int) -> None:
        """The script, or a check of ours, raised: `text` is a traceback or one line."""
        kind = type(error).__name__ if isinstance(error, ShoalError) else ScriptFailed.__name__
        failed = WorkerFailed(worker=0, step=step, error=kind, text=text)
        self.peers.report(failed)
        if self.run_dir is not None:
            self._log = log_failure(self.run_dir, failed)

    def end(self, ended: JobEnded) -> str:
        """Close the record, sum up, leave the report, and say how it ended.

        Returns what is to be said after the error; empty: nothing.
        """
        self.signals.forget()
        self.peers.close()
        ended = msgspec.structs.replace(ended, seconds=time.time() - self._started)
        unwritten = self.peers.coordinator.end(ended)
        self._catch_up()
        self._display.close()
        directory = self._directory
        if directory is None:
            self._display.summarize()
            return ""
        closing = ""
        with contextlib.suppress(OSError):
            closing = closing_line(directory.path)
        self._display.summarize(*filter(None, [closing]), f"the record is in {directory.path}")
        for file in unwritten:
            sys.stderr.write(f"shoal: {texts.incomplete(file)}\n")
        put_in_order(directory.path, self._record_start, None, directory.settings_before)
        directory.lock.close()
        leave_report(directory.path, open_it=self.config.open)
        return self._last_words(ended, directory.path)

    def _last_words(self, ended: JobEnded, run_dir: Path) -> str:
        """How it ended and which command comes next; a signal's words are in `interruption`."""
        lasted, steps = span(ended.seconds), self._display.board.step
        if ended.outcome == "failed":
            how = f"{texts.FAILED}: {ended.reason}" if ended.reason.startswith(texts.RAISED) else texts.FAILED
            go_on = self.how_to_go_on() if self._has_checkpoint else ""
            return texts.failed(texts.FailureWords(how, lasted, steps, self._log or run_dir, go_on))
        if ended.outcome != "interrupted" and steps:
            announce(self.config.progress, texts.finished(lasted, steps, run_dir))
        return ""

    @property
    def _has_checkpoint(self) -> bool:
        return self.run_dir is not None and any((self.run_dir / "checkpoints").glob("step-*/manifest.json"))

    def interruption(self, reason: str, exit_code: int) -> Interrupted:
        """What to raise where a signal ended the script."""
        record = f"; the record is in {self.run_dir}" if self.run_dir is not None else ""
        interrupted = Interrupted(
            f"{reason}{record}" + (f"; `{self.how_to_go_on()}` goes on" if self._has_checkpoint else "")
        )
        interrupted.exit_code = exit_code
        return interrupted
