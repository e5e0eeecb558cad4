"""The coordinator's work for a script that runs alone, in the script's own process: its record and its checkpoints.

Made of the same parts as the coordinator's process: `EventWriter`, `Publishing`, a `Publisher`. Nobody is to be let in,
told or waited for, so there are no connections and no decisions on disk. The script's thread and the thread that writes
checkpoints both call. Not here: making the run directory (`disk`), and what the script's end means (`entry`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from shoal.events import Advised, AnyEvent, JobEnded, Record
from shoal.membership import texts
from shoal.membership.core.audience import Audience
from shoal.membership.core.decisions import CheckpointDecided
from shoal.membership.core.protocol import DiscardCheckpoint, Publish, Published, RecordEvent, WriteDecision
from shoal.membership.core.publishing import JOB_ENDED, Publishing
from shoal.membership.publisher import Publisher
from shoal.membership.publisher_thread import discard, publish
from shoal.membership.record.event_writer import EventWriter, with_room
from shoal.membership.record.storage import StorageNews
from shoal.membership.record.worker_clocks import RecordClock, own_clock
from shoal.values import Generation
from shoal.wire.messages import PartFailed, PartWritten

Show = Callable[[AnyEvent, float], None]  # an event and its time, seconds since 1970


class InnerCoordinator:
    def __init__(self, generation: Generation, show: Show, run_dir: Path | None = None) -> None:
        """`run_dir`: of a job that is recorded from its beginning; None: there may be one later (`keep_record_in`)."""
        self._generation = generation
        self._show = show
        self._guard = threading.Lock()
        self._event_writer = EventWriter(run_dir, waits=run_dir is None)
        self._clock = RecordClock(self._event_writer.last_time)
        self._storage = StorageNews()
        self._audience = Audience()
        self._publishing = Publishing(self._audience, after_generation=generation.number - 1)
        self._publisher: Publisher | None = None
        self._settled: dict[str, bool] = {}  # checkpoints by name, and whether they were published

    # The record

    def record(self, *events: AnyEvent) -> None:
        with self._guard:
            self._write(*events)

    def keep_record_in(self, run_dir: Path) -> None:
        """Write the record from its beginning: until now it has waited in memory."""
        with self._guard:
            if lost := self._event_writer.open(run_dir):
                self._write(Advised(worker=None, text=texts.record_lines_lost(lost)))

    def _write(self, *events: AnyEvent) -> None:
        for event in events:
            for record in self._event_writer.write(Record(time=self._clock.next(), event=event)):
                self._show(record.event, record.time)
        self._event_writer.flush()
        troubles = self._event_writer.troubles
        if not troubles and self._storage.is_quiet:
            return
        for news in self._storage.look([with_room(trouble) for trouble in troubles], own_clock()):
            for record in self._event_writer.write(Record(time=self._clock.next(), event=news)):
                self._show(record.event, record.time)

    # Checkpoints

    def publish_with(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def part_done(self, part: PartWritten | PartFailed) -> None:
        """Blocks until the checkpoint is settled: the only part of it is written, or failed."""
        with self._guard:
            self._publishing.part(0, part, self._generation, own_clock())
            todo = self._carry_out()
        for instruction in todo:
            if isinstance(instruction, DiscardCheckpoint):
                discard(self._publisher, instruction)
                continue
            answer = publish(self._publisher, instruction)
            with self._guard:
                if isinstance(answer, Published):
                    self._publishing.published(answer.checkpoint, answer.outcome, own_clock())
                else:
                    self._publishing.not_published(answer.checkpoint, answer.reason)
                todo += self._carry_out()

    def is_published(self, checkpoint: str) -> bool:
        """Of a checkpoint whose part is done."""
        return self._settled.get(checkpoint, False)

    def _carry_out(self) -> list[Publish | DiscardCheckpoint]:
        """What is left to do, which may take long."""
        todo: list[Publish | DiscardCheckpoint] = []
        for instruction in self._audience.take():
            match instruction:
                case RecordEvent(event=event):
                    self._write(event)
                case WriteDecision(decision=CheckpointDecided(checkpoint=name, is_published=is_published)):
                    self._settled[name] = is_published
                case Publish() | DiscardCheckpoint():
                    todo.append(instruction)
                case _:
                    pass  # there is nobody to tell
        return todo

    # The end

    def end(self, ended: JobEnded) -> list[str]:
        """Close the record. Returns the files that could not be written to the end."""
        with self._guard:
            self._publishing.abandon(JOB_ENDED)
            self._carry_out()
            self._write(ended)
            self._event_writer.flush()
            unwritten = [trouble.file for trouble in self._event_writer.troubles]
            self._event_writer.close()
        return unwritten
