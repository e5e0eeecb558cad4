"""What happened to a job, one entry per happening that is worth telling, with its reason word for word. Pure.

Not here: progress and time shares, which are summed up elsewhere (`board`), and the notices of a running job
(`wording`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal, get_args

from shoal import events
from shoal.watch.board import Void, void_of
from shoal.watch.machine_words import carrier_words, slowest_link
from shoal.watch.server_words import changed, gone
from shoal.watch.wording import (
    amount,
    batch_words,
    duration,
    fault_words,
    named_values,
    rate,
    some_workers,
    span,
    steps_redone,
)

Category = Literal["job", "faults", "members", "machines", "void steps", "checkpoints", "servers", "epochs", "advice"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
# Kinds of happenings that a strip over the job's time shows, in its order.
LANES = (
    *("faults on purpose", "lost", "expelled", "handed over", "joined", "generations", "coordinator", "differed"),
    *("servers lost", "parameters gone"),
)
MOST_ENTRIES = 400  # of a category; the newest are kept


@dataclass(frozen=True)
class TimelineEntry:
    time: float  # seconds since 1970
    category: Category
    title: str
    reason: str = ""
    step: int | None = None
    is_problem: bool = False
    is_change: bool = False  # curves may have a step here: other members, or a resume
    lane: str = ""  # one of `LANES`, or none


class Timeline:
    """Entries by category, bounded. `entries` puts them in order."""

    def __init__(self) -> None:
        self.counts: dict[Category, int] = dict.fromkeys(CATEGORIES, 0)  # with what was left out
        # With their positions in the record, since several may happen at the same time.
        self._kept: dict[Category, deque[tuple[int, TimelineEntry]]] = {
            name: deque(maxlen=MOST_ENTRIES) for name in CATEGORIES
        }
        self._void: deque[Void] = deque(maxlen=MOST_ENTRIES)  # told once

    def add(self, event: events.Event, time: float) -> None:
        if isinstance(event, events.StepVoided):  # every worker reports the same void step
            if void_of(event) in self._void:
                return
            self._void.append(void_of(event))
        if (entry := entry_of(event, time)) is not None:
            entry = replace(entry, lane=_lane(event))
            self.counts[entry.category] += 1
            self._kept[entry.category].append((sum(self.counts.values()), entry))

    @property
    def entries(self) -> list[TimelineEntry]:
        placed = sorted((item for kept in self._kept.values() for item in kept), key=lambda item: item[0])
        return [entry for _, entry in placed]

    @property
    def left_out(self) -> int:
        return sum(self.counts.values()) - sum(len(kept) for kept in self._kept.values())


def entry_of(event: events.Event, time: float) -> TimelineEntry | None:
    match event:
        case events.StepVoided():
            title = f"step {event.step} was void in {event.operation}"
            return TimelineEntry(time, "void steps", title, event.reason, event.step, is_problem=True)
        case events.StateCopied():
            title = f"worker {event.worker} copied {amount(event.size)} of state from worker {event.source}"
            return TimelineEntry(time, "members", f"{title} in {span(event.seconds)}", event.reason, event.step)
        case events.UndoKept():
            title = f"worker {event.worker} keeps an undo copy of {amount(event.size)}, {span(event.seconds)} each"
            return TimelineEntry(time, "advice", title, event.reason)
        case events.EpochEnded():
            timed = event.samples if event.timed is None else event.timed
            since = "" if timed == event.samples else f", {timed:,} since the job was resumed"
            cost = (
                f" in {duration(event.seconds)}, {rate(timed / event.seconds)}" if event.seconds > 0 and timed else ""
            )
            title = f"epoch {event.epoch + 1} ended: {event.samples:,} samples{since}{cost}"
            return TimelineEntry(time, "epochs", title, step=event.step)
        case events.Evaluated():
            title = f"held out: {named_values(event.scores)} ({event.samples:,} samples)"
            return TimelineEntry(time, "epochs", title, step=event.step)
        case events.ScriptDoubtful():
            title = f"warning from worker {event.worker}"
            return TimelineEntry(time, "advice", title, event.text, is_problem=True)
        case events.Advised():
            said = "" if event.worker is None else f"worker {event.worker}: "
            return TimelineEntry(time, "advice", said + event.text)
        case _:
            found = _of_job(event, time) or _of_faults(event, time) or _of_members(event, time)
            found = found or _of_newcomers(event, time) or _of_machines(event, time)
            return found or _of_checkpoints(event, time) or _of_servers(event, time)


def _lane(event: events.Event) -> str:
    match event:
        case events.FaultInjected():
            return "faults on purpose"
        case events.WorkerDied() | events.WorkerFailed():
            return "lost"
        case events.WorkerExpelled():
            return "expelled"
        case events.WorkerLeft() if event.is_handover:
            return "handed over"
        case events.WorkerJoined():
            return "joined"
        case events.GenerationFormed():
            return "generations"
        case events.CoordinatorReturned():
            return "coordinator"
        case events.ReplicaDiffered():
            return "differed"
        case events.ServerLost():
            return "servers lost"
        case events.ParametersGone():
            return "parameters gone"
        case _:
            return ""


def _of_job(event: events.Event, time: float) -> TimelineEntry | None:
    match event:
        case events.JobStarted():
            title = f"{event.script} started with {some_workers(event.workers)}, {event.strategy}"
            return TimelineEntry(time, "job", title)
        case events.Resumed():
            imported = event.workers == 0
            title = (
                f"started from {event.checkpoint}"
                if imported
                else f"resumed from {event.checkpoint}, written by {some_workers(event.workers)}"
            )
            return TimelineEntry(time, "job", title, event.reason, event.step, is_change=True)
        case events.StopRequested():
            who = "from outside" if event.worker is None else f"by worker {event.worker}"
            return TimelineEntry(time, "job", f"stop asked for {who}", event.reason)
        case events.StopAgreed():
            return TimelineEntry(time, "job", f"all stop after step {event.step}", event.reason, event.step)
        case events.JobEnded():
            title = f"{event.outcome} with exit code {event.exit_code}"
            return TimelineEntry(time, "job", title, event.reason, is_problem=event.outcome == "failed")
        case _:
            return None


def _of_faults(event: events.Event, time: float) -> TimelineEntry | None:
    match event:
        case events.FaultInjected():
            return TimelineEntry(time, "faults", f"on purpose: {fault_words(event)}", event.reason, is_problem=True)
        case events.ReplicaDiffered():
            whose = "workers" if event.worker is None else f"worker {event.worker}"
            title = f"the parameters of {whose} differed"
            return TimelineEntry(time, "faults", title, event.reason, event.step, is_problem=True)
        case events.CoordinatorReturned():
            title = f"the coordinator is back, in generation {event.generation}"
            return TimelineEntry(time, "faults", title, event.reason, is_problem=True)
        case events.StorageFailed() | events.StorageRestored():
            is_back = isinstance(event, events.StorageRestored)
            title = "a file can be written again" if is_back else "a file cannot be written"
            return TimelineEntry(time, "faults", title, event.reason, is_problem=True)
        case events.ConnectionIntercepted():
            title = f"somebody at {event.source} decrypts connections"
            return TimelineEntry(time, "faults", title, event.reason, is_problem=True)
        case events.Waiting():
            title = f"waiting: {event.workers} of {event.needed} workers are here"
            return TimelineEntry(time, "faults", title, event.reason, is_problem=True)
        case events.WentBack():
            title = f"the code behind loop {event.loop} is run again"
            return TimelineEntry(time, "faults", title, event.reason, event.step, is_problem=True)
        case events.ProgressResumed():
            redone = steps_redone(event.redone, event.samples_redone)
            title = f"training went on after {span(event.seconds)}" + (f"; redone: {redone}" if redone else "")
            return TimelineEntry(time, "faults", title, event.reason, event.step)
        case _:
            return None


def _of_members(event: events.Event, time: float) -> TimelineEntry | None:
    match event:
        case events.WorkerJoined():
            title = f"worker {event.worker} joined from {event.host}, process {event.process}"
            return TimelineEntry(time, "members", title)
        case events.GenerationFormed():
            workers = ", ".join(map(str, event.workers[:16])) + (", ..." if len(event.workers) > 16 else "")
            title = f"generation {event.generation}: {'worker' if len(event.workers) == 1 else 'workers'} {workers}"
            return TimelineEntry(time, "members", title, event.reason, is_change=event.generation > 1)
        case events.WorkerLeft():
            how = "handed over" if event.is_handover else "left"
            return TimelineEntry(time, "members", f"worker {event.worker} {how}", event.reason, event.step)
        case events.WorkerExpelled():
            title = f"worker {event.worker} was expelled"
            return TimelineEntry(time, "members", title, event.reason, event.step, is_problem=True)
        case events.WorkerReturned():
            return TimelineEntry(time, "members", f"worker {event.worker} had lost the coordinator and is back")
        case events.BatchChosen():
            return TimelineEntry(time, "members", batch_words(event), event.reason)
        case events.ScheduleChosen():
            ways = (name if least == 0 else f"from {least:,} bytes {name}" for least, name in event.ranges)
            title = f"generation {event.generation} reduces by {', '.join(ways)}"
            return TimelineEntry(time, "members", title, event.reason)
        case events.WorkerDied():
            title = f"worker {event.worker} died on {event.host}, process {event.process}, in {event.operation}"
            return TimelineEntry(time, "members", title, event.reason, event.step, is_problem=True)
        case events.WorkerFailed():
            title = f"worker {event.worker} failed: {event.error}"
            return TimelineEntry(time, "members", title, event.text, event.step, is_problem=True)
        case _:
            return None


def _of_newcomers(event: events.Event, time: float) -> TimelineEntry | None:
    match event:
        case events.WorkerStarted():
            spare = ", a spare that was ready" if event.is_spare else ""
            return TimelineEntry(time, "members", f"worker {event.worker} was started{spare}", event.reason)
        case events.NewcomersHeld():
            count = len(event.workers)
            title = f"{count} {'newcomer waits' if count == 1 else 'newcomers wait'} for others that are on their way"
            return TimelineEntry(time, "members", title, event.reason)
        case _:
            return None


def _of_machines(event: events.Event, time: float) -> TimelineEntry | None:
    match event:
        case events.ProcessPlaced():
            title = f"{event.process} was put on node {event.node} ({event.host})"
            return TimelineEntry(time, "machines", title, event.reason)
        case events.EngineSaid():
            return TimelineEntry(time, "machines", event.text, is_problem=event.is_problem)
        case events.CarrierChosen():
            title = f"generation {event.generation}: {carrier_words(event)}"
            return TimelineEntry(time, "members", title, event.reason)
        case events.LinksMeasured():
            return TimelineEntry(time, "machines", slowest_link(event))
        case _:
            return None


def _of_checkpoints(event: events.Event, time: float) -> TimelineEntry | None:
    match event:
        case events.CheckpointPublished():
            marked = f", marked {event.mark}" if event.mark else ""
            held = f"{amount(event.size)} in {span(event.seconds)}, training held up {span(event.blocked)}"
            return TimelineEntry(
                time, "checkpoints", f"{event.checkpoint} published: {held}{marked}", event.reason, event.step
            )
        case events.CheckpointMarked():
            return TimelineEntry(time, "checkpoints", f"{event.checkpoint} marked {event.mark}", "", event.step)
        case events.CheckpointLost():
            whose = "at its publication" if event.worker is None else f"by worker {event.worker}"
            title = f"{event.checkpoint} lost {whose}"
            return TimelineEntry(time, "checkpoints", title, event.reason, event.step, is_problem=True)
        case events.CheckpointDeferred():
            return TimelineEntry(time, "checkpoints", "a checkpoint was put off", event.reason, event.step)
        case events.CheckpointRefused():
            title = f"{event.checkpoint} cannot be used"
            return TimelineEntry(time, "checkpoints", title, event.reason, is_problem=True)
        case _:
            return None


def _of_servers(event: events.Event, time: float) -> TimelineEntry | None:
    match event:
        case events.ServerJoined():
            return TimelineEntry(
                time, "servers", f"server {event.server} joined from {event.host}, process {event.process}"
            )
        case events.ServerLost():
            return TimelineEntry(time, "servers", f"server {event.server} was lost", event.reason, is_problem=True)
        case events.ServerLeft():
            return TimelineEntry(time, "servers", f"server {event.server} has left", event.reason)
        case events.ServersChanged():
            title = f"version {event.version}: {changed(event).partition(': ')[0]}"
            return TimelineEntry(time, "servers", title, event.reason)
        case events.ParametersGone():
            return TimelineEntry(time, "servers", gone(event), event.reason, is_problem=True)
        case _:
            return None
