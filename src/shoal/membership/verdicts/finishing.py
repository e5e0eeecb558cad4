"""The end of the script: which workers have come to it, when all are released, and whose last lines still run. Pure.

A worker whose function has returned says so and keeps its state until every member is done: if a member is lost before,
the others run its unfinished code again and need that state. Then all are released at once. The code behind
`shoal.main` runs after that; the job is over when every script has come to its last line. Not here: going back
(`alignment`), and how the end is announced (`ending`).
"""

from __future__ import annotations

from shoal import events
from shoal.job_config import JobConfig
from shoal.membership.core import reasons
from shoal.membership.core.audience import Audience
from shoal.membership.core.decisions import MemberLeft, MembersReleased, Remembered
from shoal.membership.core.publishing import Publishing
from shoal.membership.core.roster import Fate, Worker, remembered
from shoal.membership.generations.generations import Generations
from shoal.values import THROUGH
from shoal.wire.messages import Done, Leave, Ready, Released


class Finishing:
    def __init__(self, config: JobConfig, audience: Audience, generations: Generations, publishing: Publishing) -> None:
        self._grace = config.absence_limit + config.heartbeat_limit  # seconds
        self._audience = audience
        self.generations = generations
        self._publishing = publishing

    def remember(self, known: Remembered, now: float) -> None:
        """Release again the members that an earlier coordinator released: their scripts may still run."""
        for member in known.running_on:
            self._release(self.generations.workers.setdefault(member.worker, remembered(member, 0, now)))
        if known.is_released:
            for worker in tuple(self.generations.members.values()):
                self._release(worker)

    # What workers say

    def done(self, worker: Worker, said: Done, now: float) -> None:
        """The worker's function has returned. A worker outside the current generation waits to be let in."""
        current = self.generations.current
        if not worker.is_here:
            self.tell_released(worker)
        elif not self.generations.is_member(worker):
            self.generations.ready(worker, Ready(generation=said.generation), now)
        elif current is not None and said.generation == current.number:
            worker.step, worker.points, worker.why_done = said.step, said.points, said.reason
            worker.point = THROUGH if said.is_through else worker.point
            self.generations.done(worker)
            why = f"worker {worker.number} had come to the end of its script before its part was written"
            self._publishing.gone(worker.number, why, now)
            if said.is_leaving:
                self._go_before_the_others(worker, said.reason, now)

    def leave(self, worker: Worker, leave: Leave, now: float) -> None:
        """The worker's script has come to its last line, or the worker hands its place over."""
        if worker.fate is Fate.RELEASED:
            worker.step = leave.step
            self._finish(worker, leave.reason, now)
        if not worker.is_here:
            return
        worker.step = leave.step
        # A worker that was put out and then finishes has a result of its own, which is not the job's.
        is_outside = self.generations.current is not None and not self.generations.is_member(worker)
        if not leave.is_handover and not is_outside:
            self._finish(worker, leave.reason, now)
            return
        worker.fate = Fate.HANDED_OVER
        if self.generations.is_member(worker):
            self._audience.write_decision(MemberLeft(worker=worker.number, is_handover=True))
        self._record(worker, leave.reason, now, is_handover=True)
        self.generations.out(worker, reasons.handed_over(worker.number, leave.reason), now)

    def tell_released(self, worker: Worker) -> None:
        """The worker has connected again, or asks again: it may not have heard that it was released."""
        if worker.fate in (Fate.RELEASED, Fate.FINISHED) and worker.client is not None:
            self._audience.send((worker.client,), Released())

    # What follows

    def settle(self, now: float) -> None:
        """Release the members if all are done and none was lost."""
        members = tuple(self.generations.members.values())
        if not (members and self.generations.is_fine and all(worker.is_done for worker in members)):
            return
        through = [worker for worker in members if worker.point >= THROUGH]
        self._audience.write_decision(MembersReleased(finished=tuple(worker.number for worker in through)))
        for worker in members:
            self._release(worker)
        for worker in through:
            worker.fate = Fate.FINISHED
            self._record(worker, worker.why_done, now, is_handover=False)
        self._audience.send(tuple(worker.client for worker in members if worker.client is not None), Released())

    def ended_well(self, worker: Worker, now: float) -> None:
        """A released worker's process ended with 0: its script came to its last line, whether it said so or not."""
        self._finish(worker, "its process ended with exit code 0", now)

    @property
    def is_open(self) -> bool:
        """Some scripts have not come to their last lines yet."""
        return any(worker.fate is Fate.RELEASED for worker in self.generations.workers.values())

    def vanished(self, now: float) -> Worker | None:
        """A released worker that is no longer heard from and whose exit nobody has reported."""
        for worker in self.generations.workers.values():
            if worker.fate is Fate.RELEASED and worker.client is None and now - worker.heard >= self._grace:
                return worker
        return None

    def _go_before_the_others(self, worker: Worker, reason: str, now: float) -> None:
        if worker.point >= THROUGH:
            self._finish(worker, reason, now)
        else:
            self._audience.write_decision(MemberLeft(worker=worker.number, is_handover=False, runs_on=True))
            self._release(worker)
        self.tell_released(worker)

    def _release(self, worker: Worker) -> None:
        self.generations.finished(worker)
        worker.fate = Fate.RELEASED
        worker.generation, worker.is_done = 0, False

    def _finish(self, worker: Worker, reason: str, now: float) -> None:
        if worker.fate is Fate.RELEASED or self.generations.is_member(worker):
            self._audience.write_decision(MemberLeft(worker=worker.number, is_handover=False))
        worker.fate = Fate.FINISHED
        self._record(worker, reason, now, is_handover=False)
        self.generations.finished(worker)

    def _record(self, worker: Worker, reason: str, now: float, *, is_handover: bool) -> None:
        self._audience.record(
            events.WorkerLeft(worker=worker.number, step=worker.step, reason=reason, is_handover=is_handover)
        )
        self._publishing.gone(worker.number, f"worker {worker.number} left before its part was written", now)
