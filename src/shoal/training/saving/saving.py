"""This worker's parts of checkpoints, and what holds the script up while they are made.

All workers capture the same step: a worker that wants a checkpoint says so in the step's exchange, and so does one that
is still writing the last checkpoint. A checkpoint is over for a worker when the coordinator has published it or given
it up. Not here: when one is due (`timetable`), what is captured (`state`), the writing
(`checkpoint.parts.part_thread`), and publishing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from shoal.checkpoint.parts.capture import SMALL, Capture, CaptureMemory, NamedState
from shoal.checkpoint.parts.part_thread import CoordinatorAnswers, PartThread, PartToWrite, Writing
from shoal.checkpoint.published.catalogue import is_published, set_mark
from shoal.checkpoint.published.manifest import About, checkpoint_name, own_prefix, part_name
from shoal.checkpoint.state_tree import flatten_named
from shoal.checkpoint.stores.store import Store
from shoal.errors import ShoalError
from shoal.events import Advised, CheckpointDeferred, CheckpointStarted
from shoal.job_config import JobConfig
from shoal.strategies.peers.peers import Peers
from shoal.strategies.replica.votes import Votes
from shoal.training import texts
from shoal.training.model.devices import finish
from shoal.training.saving.timetable import Due, Timetable
from shoal.values import Cursor
from shoal.wire.messages import PartFailed

OpenPlace = Callable[[], tuple[Store, JobConfig]]  # a place for checkpoints, and the settings that name it
CODEC = "codec/"  # what the names of a codec's state begin with in a checkpoint


@dataclass(frozen=True)
class Moment:
    """The point of a job at which a checkpoint is made."""

    step: int
    cursor: Cursor
    loop: int
    first_step: int
    reason: str
    mark: str = ""
    is_last: bool = False  # the job waits for it


@dataclass(frozen=True)
class Snapshot:
    tree: dict[str, Any]  # the state, with its live tensors
    steady: Callable[[list[str]], set[str]]  # which of these paths nothing but an optimizer's step changes


class Saver:
    """One worker's checkpoints. `store` is None where none are kept: then nothing is ever due."""

    def __init__(
        self, peers: Peers, config: JobConfig, store: Store | None, open_place: OpenPlace | None = None
    ) -> None:
        """`open_place`: where there is no store yet, makes one for the first checkpoint that the script asks for."""
        self._peers = peers
        self._config = config
        self._store = store
        self._open_place = open_place
        rhythm = config.checkpoints
        self.is_on = store is not None and rhythm.at_end
        self._timetable = Timetable(rhythm, now=time.monotonic())
        self._capture_memory = CaptureMemory()
        self._answers = CoordinatorAnswers(peers.part_done, peers.settlement)
        self._thread: PartThread | None = None  # started with the first checkpoint
        self._last: Writing | None = None  # the last checkpoint begun
        self._preparing: threading.Thread | None = None  # gets the memory for the first copy ready
        self._is_prepared = False
        self._is_untold = False  # the script asked for a checkpoint, and no vote has said so yet
        self._is_copying = False  # as far as the script's thread knows
        self._is_lazy = True  # copy during the next forward and backward; not where the script's own code interferes
        self.blocked = 0.0  # seconds so far that the script was held up
        self.last_step = -1  # step of the last checkpoint that was begun or resumed from
        self.last_name = ""
        self._is_told = False  # that the script's requests make no checkpoints

    def start_over(self) -> None:
        """The job goes back to a checkpoint, or to its start: what was begun since does not count."""
        self.fence()
        self.last_step, self.last_name = -1, ""

    def go_on_from(self, step: int, name: str) -> None:
        """The last checkpoint that all members know of, or that this job is resumed from."""
        self.last_step, self.last_name = step, name

    def turn_on(self) -> None:
        """The script asks for a checkpoint. In a script that runs alone, the first request makes the run directory."""
        if self.is_on:
            return
        if not self._config.checkpoints.at_end:
            if not self._is_told and self._peers.group.rank == 0:
                self._peers.report(Advised(worker=self._peers.worker, text=texts.SAVE_IS_OFF))
            self._is_told = True
        elif self._open_place is not None:
            self._store, self._config = self._open_place()
            self.is_on = True

    # When

    @property
    def is_busy(self) -> bool:
        return self._is_writing or (self._preparing is not None and self._preparing.is_alive())

    @property
    def _is_writing(self) -> bool:
        return self._last is not None and not self._last.over.is_set()

    def prepare(self, size: Callable[[], int]) -> None:
        """After the first step of a job that will make checkpoints: `size` is about how many bytes each takes."""
        if self._is_prepared or not self.is_on or not self._timetable.is_periodic:
            return
        self._is_prepared = True
        if (wanted := size()) > SMALL:
            self._preparing = threading.Thread(
                target=self._capture_memory.prepare, args=(wanted,), name="shoal-checkpoint-memory", daemon=True
            )
            self._preparing.start()

    def restart_clock(self) -> None:
        """A loop begins."""
        self._timetable.loop_begins(time.monotonic())

    def ask(self, mark: str) -> None:
        """The script wants a checkpoint after this step."""
        self._timetable.ask(mark)
        self._is_untold = True

    @property
    def is_asked_now(self) -> bool:
        """Whether the script asked since the last vote, on every worker: newcomers know of no earlier request."""
        return self.is_on and self._is_untold

    def take_asked(self) -> str | None:
        """The mark of a checkpoint that was asked for in a loop that is over."""
        mark = self._timetable.take_asked()
        return mark if self.is_on else None

    def owe(self) -> None:
        """A checkpoint was due in a step that broke."""
        self._timetable.owe()

    def vote(self, votes: Votes, *, step: int) -> None:
        """Say what this worker brings to the exchange of the step that will be number `step` once it is applied."""
        if self.is_on and self._timetable.is_marked:  # the mark is for this very state, so it is not put off
            self.wait()
        busy, self._is_untold = self.is_busy, False
        if self._last is not None and self._last.part.capture.torn is not None and not busy:
            self._is_lazy = False
            self._timetable.owe()
            self._last = None
        votes.want_save(save=self.is_on and self._timetable.reason(step, time.monotonic()) is not None, busy=busy)

    def pass_over(self, *, step: int) -> None:
        """Workers do not meet in the step that will be number `step`: a checkpoint that is due then is owed."""
        if self.is_on and self._timetable.reason(step, time.monotonic()) is not None:
            self._timetable.owe()

    def vote_asked(self, votes: Votes) -> None:
        """A loop is over: a checkpoint that was asked for inside and put off is made now, by all workers or by none."""
        self._is_untold = False
        votes.want_save(save=self.is_on and self._timetable.is_asked, busy=False)

    def decide(self, votes: Votes, *, step: int) -> Due | None:
        """After the exchange: the checkpoint that all workers make now, if any."""
        if not votes.save_seen or not self.is_on:
            return None
        decided = self._timetable.decide(step, time.monotonic(), some_are_busy=votes.busy_seen)
        if isinstance(decided, Due):
            return decided
        if decided.is_new and self._is_writing and self._peers.group.rank == 0:
            reason = "the one before is still being written; this one is made as soon as that is done"
            self._peers.report(CheckpointDeferred(step=step, reason=reason))
        return None

    # Making one

    def begin(self, snapshot: Snapshot, moment: Moment) -> None:
        """Copy what must be copied now and leave the rest to a thread. Never raises because of a checkpoint."""
        assert self._store is not None and not self.is_busy
        started, self.last_step = time.perf_counter(), moment.step
        self._timetable.begins(time.monotonic())
        self._is_prepared = True
        self._last = None  # and with it the last copy, whose memory is used again or too small
        generation = self._peers.generation.number
        name = self.last_name = checkpoint_name(moment.step, generation)
        if self._peers.group.rank == 0:
            told = CheckpointStarted(checkpoint=name, step=moment.step, reason=moment.reason, is_last=moment.is_last)
            self._peers.report(told)
        try:
            part = self._captured(snapshot, moment, name)
        except Exception as error:  # a defect, or a state that cannot be written, costs only this checkpoint
            failed = PartFailed(checkpoint=name, generation=generation, step=moment.step, reason=str(error))
            self._peers.part_done(failed)
            return
        if self._thread is None:
            self._thread = PartThread(self._store, self._answers)
        self._last, self._is_copying = self._thread.begin(part), True
        self._count(started)

    def _captured(self, snapshot: Snapshot, moment: Moment, name: str) -> PartToWrite:
        group, generation = self._peers.group, self._peers.generation
        flat = flatten_named(snapshot.tree, named="the state")
        finish(flat.tensors)  # another thread copies them
        prefix = f"{own_prefix(group.rank)}{CODEC}"
        own = {f"{prefix}{name}": tensor for name, tensor in self._peers.codec.state().items()}
        state = NamedState(flat.names, flat.tensors, snapshot.steady(flat.names) if self._is_lazy else (), own)
        about = About(
            kind="full",
            step=moment.step,
            generation=generation,
            cursor=moment.cursor,
            loop=moment.loop,
            first_step=moment.first_step,
            config=self._config.to_toml(),
            tree=msgspec.Raw(flat.skeleton),
            reason=moment.reason,
            mark=moment.mark,
        )
        return PartToWrite(
            checkpoint=name,
            file=part_name(group.rank, group.size),
            generation=generation.number,
            step=moment.step,
            reason=moment.reason,
            mark=moment.mark,
            capture=Capture(state, self._capture_memory, rank=group.rank, world_size=group.size),
            about=about if group.rank == 0 else None,
        )

    def fence(self) -> None:
        """The state is about to change: wait until all that is still being copied is copied."""
        if self._is_copying and self._last is not None:
            started = time.perf_counter()
            self._last.part.capture.settle()
            self._count(started)
        self._is_copying = False

    def _count(self, started: float) -> None:
        seconds = time.perf_counter() - started
        self.blocked += seconds
        if self._last is not None:
            self._last.blocked += seconds

    def wait(self) -> None:
        """Wait until the last checkpoint is published or lost. In the script's thread."""
        self.fence()
        if self._preparing is not None:
            self._preparing.join()
        if self._last is not None:
            self._last.over.wait()

    def forget_lost(self) -> None:
        """Treat a last checkpoint that was lost as if it had not been begun."""
        if self._last is not None and self._last.over.is_set() and not self._last.is_published:
            self.last_step, self.last_name = -1, ""

    def mark_last(self, label: str) -> str:
        """Mark the last checkpoint, which is settled. Returns what went wrong; empty: nothing."""
        assert self._store is not None
        try:
            if not is_published(self._store, self.last_name):
                return f"{self.last_name} was lost"
            set_mark(self._store, label, self.last_name)
        except (OSError, ShoalError) as error:
            return str(error)
        return ""

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
