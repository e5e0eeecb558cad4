"""Jobs as they might have gone, step by step, with what is true of them by counting and what their record says.

A history applies steps, loses workers, regroups, goes back to checkpoints, stops everybody, evaluates, and replaces the
coordinator. Workers report by clocks of their own, late and in any order. The truth is a list of what was applied and a
list of standstills; nothing of it comes from the code under test.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from shoal import events
from shoal.membership.record.bookkeeping import Before, Bookkeeping, Written
from shoal.steps import MetricLine, StepRow
from shoal.values import TimeShares
from support.records import job_started

BEGAN = 1_763_190_000.0
HEARD = 6.5  # seconds after which nobody being heard of is noted


@dataclass(frozen=True)
class Applied:
    """One step, or one update of a worker that runs free."""

    time: float
    step: int
    samples: int


@dataclass
class Worker:
    ahead: float  # seconds that its clock is ahead of the coordinator's
    samples: int = 0
    seconds: float = 0.0
    ended: float = 0.0  # when its last step was applied, or its loop began
    generation: int = 0  # of its last step
    step: int = 0
    unsent: list[StepRow] = field(default_factory=list)
    sent: list[events.StepsApplied] = field(default_factory=list)  # all reports, to be said again
    kept: list[events.StepsApplied] = field(default_factory=list)  # made while nobody took them


class History:
    def __init__(self, workers: int, *, is_free: bool) -> None:
        self.is_free = is_free
        self.time = BEGAN
        self.workers: dict[int, Worker] = {}
        self.members: list[int] = []
        self.generation = 0
        self.step = 0
        self.saved = 0  # of the newest checkpoint
        self.turn = 0
        self.is_heard = True  # the coordinator takes what comes
        # The truth
        self.applied: list[Applied] = []  # all, in order
        self.counting: list[Applied] = []  # those that count
        self.taken_back = self.samples_taken_back = 0
        self.void = 0
        self.standstills: list[tuple[float, float]] = []  # in which training stood still
        self.outside = 0.0  # seconds between loops that nothing was wrong in
        self._sign: float | None = None  # since when something is wrong
        self._is_told = False  # a standstill that the coordinator knows of
        self._since = self._loop_began = BEGAN  # what training stands still since, or would
        # The record
        self.records: list[events.Record] = []
        self.shown: list[events.Record] = []
        self.lines: list[MetricLine] = []
        self._books = Bookkeeping()
        self._note(job_started(workers=workers))
        self._form(range(workers), "all are here")
        self._loop()

    # What happens

    def apply(self, count: int, seconds: float) -> None:
        for _ in range(count):
            self.time += seconds
            self._applied(4 if self.is_free else 4 * len(self.members))

    def report(self, worker: int) -> None:
        if worker in self.workers:
            self._report(worker)

    def die(self, number: int, *, steps_void: bool = True) -> None:
        """A member is lost; with the last one everybody's state is."""
        if self.members:
            worker = self.members[number % len(self.members)]
            self._report(worker)  # what nobody ever tells is no part of the record
            self.time += 0.05
            self._wrong()
            reason = f"worker {worker} was killed by SIGKILL"
            self._note(
                events.WorkerDied(worker=worker, host="h", process=1, step=self.step, operation="x", reason=reason)
            )
            self.members.remove(worker)
            del self.workers[worker]
            if steps_void:
                self._void()
            self.time += 0.2
            for member in self.members:
                self._report(member)
            if self.members:
                self._form(self.members, reason)
                self._go_on(self.members)
            else:
                self._form([self._newest() + 1, self._newest() + 2], reason)
                self._go_back()

    def join(self) -> None:
        self._wrong()
        for member in self.members:
            self._report(member)
        self.time += 0.1
        before = list(self.members)
        self._form([*before, self._newest() + 1], "somebody is let in")
        self._go_on(before)

    def lose_servers(self) -> None:
        """The state is gone, and everybody begins from the newest checkpoint."""
        self.time += 0.1
        self._wrong()
        self._void()
        for member in self.members:
            self._report(member)
        self.time += 1.0
        self._form(self.members, "all servers are lost")
        self._go_back()

    def save(self) -> None:
        self.saved = self.step

    def stop_all(self, seconds: float) -> None:
        for member in self.members:
            self._report(member)
        if seconds > HEARD:
            self._wrong()
            self._is_told = True
            self.time += HEARD
            self._note(events.Waiting(workers=0, needed=1, reason="nobody is heard of"))
        self.time += seconds - HEARD if seconds > HEARD else seconds

    def evaluate(self, seconds: float, *, dies: bool = False) -> None:
        """Between two loops. If a member dies in it, it is held again."""
        if self._sign is not None or not self.applied:
            return
        for member in self.members:
            self._report(member)
        self._note(events.LoopEnded(loop=1, step=self.step))
        self.outside += seconds
        self.time += seconds
        if dies and len(self.members) > 1:
            began = self.time
            self.die(0, steps_void=False)
            self.time += seconds
            self.standstills.append((began + 0.05, self.time))
            self.outside += 0.05
            self._sign, self._is_told = None, False
        self._note(events.Evaluated(step=self.step, samples=1, scores={}))
        self._loop()

    def hold(self, *, is_heard: bool) -> None:
        """The coordinator stands still, or goes on; everybody has been heard of before."""
        if is_heard and not self.is_heard:
            self.is_heard = True
            for worker in self.workers.values():
                for report in worker.kept:
                    self._note(report)
                worker.sent, worker.kept = [*worker.sent, *worker.kept], []
        elif not is_heard and all(worker.sent for worker in self.workers.values()):
            self.is_heard = False

    def replace_coordinator(self, seconds: float) -> None:
        """What it had not written is lost with it; workers say their last reports again, as sent now."""
        self.hold(is_heard=True)
        self.is_heard = False
        self.apply(3, seconds / 3)
        self.is_heard = True
        self._books = Bookkeeping(Before(began=BEGAN, events=self.records, metrics=self.lines))
        self._note(events.CoordinatorReturned(generation=self.generation, reason="", workers=tuple(self.members)))
        for number, worker in self.workers.items():
            worker.sent, worker.kept = [*worker.sent, *worker.kept], []
            for report in worker.sent:
                self._note(msgspec.structs.replace(report, clock=self.time + worker.ahead))
            self._report(number)

    def end(self) -> None:
        self.hold(is_heard=True)
        if self._sign is not None:  # else it lasts to the end
            self.apply(2, 0.1)
        for member in self.members:
            self._report(member)
        self._note(events.JobEnded(outcome="finished", exit_code=0, reason="", seconds=0.0))

    # What is true

    def _wrong(self) -> None:
        self.hold(is_heard=True)
        if self._sign is None:
            self._sign = self.time
            self._since = max(self._loop_began, self.applied[-1].time) if self.applied else self._loop_began

    def _void(self) -> None:
        self.void += len(self.members) if self.is_free else bool(self.members)
        for member in self.members:
            self._note(
                events.StepVoided(
                    worker=member, generation=self.generation, step=self.step, operation="x", reason="", samples=4,
                    is_own=self.is_free,
                )
            )  # fmt: skip

    def _go_on(self, members: list[int]) -> None:
        """Who was a member before says that it is in the next generation."""
        for member in members:
            worker = self.workers[member]
            worker.generation, worker.step = self.generation, self.step
            self._report(member)

    def _go_back(self) -> None:
        self.step = self.saved
        if self.saved:
            self._note(events.Resumed(checkpoint="c", step=self.saved, workers=1, reason=""))
        self._loop()

    def _applied(self, samples: int) -> None:
        self.step += 1
        here = Applied(self.time, self.step, samples)
        if self._sign is not None and self._is_told:
            self.standstills.append((self._since, self.time))
            self._sign, self._is_told = None, False
        self.applied.append(here)
        back = [each for each in self.counting if each.step >= self.step]
        self.taken_back += len(back)
        self.samples_taken_back += sum(each.samples for each in back)
        self.counting = [each for each in self.counting if each.step < self.step] + [here]
        if self.is_free:
            self.turn += 1
            self._row(self.members[self.turn % len(self.members)], samples, samples)
        else:
            for member in self.members:
                self._row(member, 4, samples)

    def _row(self, number: int, own: int, total: int) -> None:
        worker = self.workers[number]
        seconds, worker.ended = self.time - worker.ended, self.time
        worker.samples += own
        worker.seconds += seconds
        worker.generation, worker.step = self.generation, self.step
        worker.unsent.append(StepRow(self.step, 0, seconds, own, {}, total, self.generation, self.time + worker.ahead))

    # What is told

    def _report(self, number: int) -> None:
        worker = self.workers[number]
        report = events.StepsApplied(
            worker=number,
            generation=worker.generation,
            step=worker.step,
            epoch=0,
            samples=worker.samples,
            seconds=worker.seconds,
            shares=TimeShares(compute=worker.seconds),
            bytes_sent=worker.samples,
            values={},
            rows=tuple(worker.unsent),
            clock=self.time + worker.ahead,
        )
        worker.unsent = []
        if self.is_heard:
            self._note(report)
            worker.sent.append(report)
        else:
            worker.kept.append(report)

    def _newest(self) -> int:
        return self.generation * 100

    def _form(self, members: Iterable[int], reason: str) -> None:
        self.members = list(members)
        self.generation += 1
        self._is_told = self.generation > 1
        for member in self.members:
            ahead = ((member * 7919) % 1000) - 500.0
            self.workers.setdefault(member, Worker(ahead, ended=self.time))
        made = events.GenerationFormed(
            generation=self.generation, workers=tuple(self.members), schedule="", codec="", reason=reason
        )
        self._note(made)

    def _loop(self) -> None:
        for member in self.members:
            self.workers[member].ended = self.time
        self._loop_began = self.time
        self._note(events.LoopStarted(loop=1, epochs=1, steps_per_epoch=None, global_batch=4, samples_per_epoch=None))

    def _note(self, event: events.AnyEvent) -> None:
        self.time += 1e-4
        self._write(self._books.take(events.Record(self.time, event)))

    def _write(self, written: Written) -> None:
        self.records += written.events
        self.shown += written.shown
        self.lines += written.metrics
