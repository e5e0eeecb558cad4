"""Where all workers of a loop come together, and what they do there: save, stop, regroup, hand over.

Workers in step meet in each step's exchange, which carries their votes; what the votes ask for is done when the step is
over. Workers that run free meet when one of them calls. Not here: meetings outside loops (`meetings`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from shoal.errors import ExchangeFailed
from shoal.strategies.free_running import FreeRunning
from shoal.strategies.peers.peers import Breakage
from shoal.strategies.strategy import Iteration
from shoal.training.loop.leasing import Leased
from shoal.training.loop.supply import LoopAtWork
from shoal.training.saving.checkpointing import save_after_step, save_on_handover
from shoal.training.session import HandedOver


class LoopMeetings(ABC):
    @abstractmethod
    def after_step(self, iteration: Iteration) -> None:
        """A step was applied: do what needs all workers, or call them. Marks the iteration where that fails."""

    def heed(self) -> bool:
        """After the step is accounted for: whether something came between, so that positions are given out anew."""
        return False

    def meet(self) -> None:  # noqa: B027  in step with each other, workers meet in the next step
        """Come together now: all workers were called, or this one has nothing left to do."""

    def ends_together(self) -> bool:
        """No position is left here, or a stop was agreed on: whether all workers know that, where it matters."""
        return True


class MeetingsInSteps(LoopMeetings):
    def __init__(self, loop: LoopAtWork) -> None:
        self._loop = loop

    def after_step(self, iteration: Iteration) -> None:
        session, votes = self._loop.session, self._loop.session.replica.votes
        if not iteration.meets:
            return
        if votes.stop_seen:
            self._agree(iteration, f"stop after step {session.step}")
        if session.saver.is_asked_now and iteration.breakage is None:
            # Every worker's script called run.save in this step: ask now which workers are still writing.
            session.saver.vote(votes, step=session.step)
            self._agree(iteration, f"saving after step {session.step}")
        if iteration.breakage is None and session.stopped is None:
            heed_wishes(self._loop, iteration)
        if iteration.breakage is None:
            save_after_step(session, self._loop.cursor)

    def ends_together(self) -> bool:
        """A stretch ends with the loop, however few steps it has."""
        session = self._loop.session
        if not session.strategy.manners.has_stretches or session.unit.start is None:
            return True
        iteration = Iteration(session.step, 0.0, 0.0, 0)
        session.strategy.finish(iteration)
        if iteration.breakage is not None:
            self._loop.mend(iteration, iteration.breakage)
            return False
        session.commit()
        return True

    def _agree(self, iteration: Iteration, point: str) -> None:
        try:
            self._loop.session.agree(point)
        except ExchangeFailed as failure:
            iteration.mark_broken(point, failure)


class CalledMeetings(LoopMeetings):
    def __init__(self, loop: LoopAtWork, supply: Leased, free: FreeRunning) -> None:
        self._loop = loop
        self._supply = supply
        self._free = free

    def after_step(self, iteration: Iteration) -> None:
        """Call all workers, for the end of their present update, where only all together can do what is wished for."""
        session, votes, peers = self._loop.session, self._loop.session.replica.votes, self._loop.session.peers
        session.saver.vote(votes, step=session.step)
        wishes = {
            "a checkpoint is due": votes.save and not votes.busy,
            "a stop was asked for": votes.stop is not None or peers.stop_wish() is not None,
            "a worker hands its place over": peers.leave_wish() is not None,
            "somebody waits to be let in": peers.regroup_wish() is not None,
        }
        reason = next((text for text, is_wished in wishes.items() if is_wished), None)
        if reason is None or self._free.is_called:
            return
        try:
            self._free.call(reason)
        except ExchangeFailed as failure:
            iteration.mark_broken("calling a meeting", failure)

    def heed(self) -> bool:
        """Whether there was a meeting, or a new generation, after this update."""
        session = self._loop.session
        if (news := session.peers.interruption()) is not None:
            self._loop.regroup(Breakage(session.step, "an update", news, None))
            return True
        if self._free.is_called:
            self.meet()
            return True
        return False

    def meet(self) -> None:
        session, votes = self._loop.session, self._loop.session.replica.votes
        point = f"meeting in loop {self._loop.number}"
        session.saver.vote(votes, step=session.step)
        votes.forget_wishes()
        try:
            session.agree(point)
            self._supply.placed(self._free.look(point))
            save_after_step(session, self._loop.cursor)
            over = torch.zeros(1)
            session.peers.group.all_reduce(over, label=f"{point}, its end").wait()  # nobody changes what others save
        except ExchangeFailed as failure:
            self._loop.regroup(Breakage.by(failure, session.step, point))
            return
        if session.stopped is None:
            iteration = Iteration(session.step, 0.0, 0.0, 0)
            heed_wishes(self._loop, iteration)
            if iteration.breakage is not None:
                self._loop.regroup(iteration.breakage)

    def ends_together(self) -> bool:
        """All workers take in the last values before they compare replicas."""
        session = self._loop.session
        if session.stopped is None and not self._supply.all_know:
            self.meet()
        return session.stopped is not None or self._supply.all_know


def heed_wishes(loop: LoopAtWork, iteration: Iteration) -> None:
    """Act on what workers said where all met: that one of them leaves, or that somebody waits to be let in."""
    session, votes = loop.session, loop.session.replica.votes
    if votes.leaving:
        session.reporter.tell(step=session.step)  # nobody else may know of this step
        if votes.leaving_seen == session.peers.group.size:  # nobody is left to hand over to
            save_on_handover(session, loop.cursor)
        raise HandedOver(session.peers.leave_wish() or "it was told to go")
    if votes.leaving_seen or votes.regroup_seen:
        reason = session.peers.regroup_wish() or "a worker hands its place over or waits to be let in"
        operation = f"regrouping after step {session.step}"
        iteration.breakage = Breakage(session.step, operation, reason, None, is_planned=True)
