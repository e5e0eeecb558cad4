"""Where the positions of a loop come from: the interface, and positions that are dealt out to all workers.

Dealt positions are a pure function of the cursor and the generation, so that all members see the same steps and a void
one is dealt out anew. Not here: positions that are leased (`leasing`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, Protocol

from shoal.data.dealing import Dealing
from shoal.data.feed import Batch
from shoal.events import EpochEnded
from shoal.strategies.peers.peers import Breakage
from shoal.strategies.strategy import Iteration
from shoal.training.loop.loop_task import LoopTask
from shoal.training.session import Session
from shoal.values import Cursor
from shoal.wire.tables import Range


class LoopAtWork(Protocol):
    """What supplies and meetings know of the loop."""

    session: Session
    task: LoopTask
    number: int  # in program order
    first_step: int
    cursor: Cursor
    reached: int  # position after the last batch

    @property
    def goes_on(self) -> bool: ...

    def go_to(self, cursor: Cursor) -> None:
        """Set the loop's place in its data."""
        ...

    def begin_portion(self) -> int:
        """Note and return the position from which batches of one epoch are about to be dealt out."""
        ...

    def run_through(self, batches: Generator[Batch, None, None]) -> Generator[Any, None, bool]:
        """Yield the batches, settling each before the next. Returns whether all of them were yielded."""
        ...

    def mend(self, iteration: Iteration, breakage: Breakage) -> None:
        """After a breakage: undo the iteration where it is void, and go on in the next generation."""
        ...

    def meet(self) -> None:
        """All workers were called, or this one has nothing left to do."""
        ...

    def regroup(self, breakage: Breakage) -> None:
        """Go on in the next generation."""
        ...


class Supply(ABC):
    """Only leases need the methods that are not abstract."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """No position is left, as far as this worker knows."""

    @abstractmethod
    def dealing(self) -> Dealing:
        """How steps are dealt out in the present generation."""

    @abstractmethod
    def portion(self) -> Generator[Any, None, None]:
        """Run through the next batches that belong together, up to where something may come between."""

    @abstractmethod
    def applied(self, batch: Batch, iteration: Iteration) -> None:
        """A step is applied: its positions are used."""

    def begin(self, *, holds_state: bool) -> None:  # noqa: B027
        """The loop begins, or a newcomer gets into it (not `holds_state`). Raises ExchangeFailed."""

    def may_begin(self, batch: Batch) -> bool:  # noqa: ARG002
        """Whether a step may begin with this batch. False where something came between: the batch is given up."""
        return True

    def positions(self, batch: Batch) -> tuple[Range, ...]:  # noqa: ARG002
        """Positions that the present step has used up after this batch, where they are this worker's own."""
        return ()

    def reopen(self) -> None:  # noqa: B027
        """In a new generation: forget whether all positions are used."""

    def rejoin(self) -> None:  # noqa: B027
        """This worker is in a new generation. Raises ExchangeFailed."""


class Dealt(Supply):
    """All workers share every step's positions."""

    def __init__(self, loop: LoopAtWork) -> None:
        self._loop = loop
        self._is_in_gap = False  # the present step's positions are before the cursor

    def dealing(self) -> Dealing:
        task, peers, config = self._loop.task, self._loop.session.peers, self._loop.session.config
        return Dealing(
            rank=peers.group.rank,
            shares=tuple(member.share for member in peers.generation.members),
            batch_size=task.feed.batch_size,
            accumulate=task.accumulate,
            workers=config.workers if config.resize == "global-batch" else 0,
        )

    @property
    def is_over(self) -> bool:
        """Depends on the state alone, so that all members answer alike after any regrouping."""
        task, loop = self._loop.task, self._loop
        is_limited = task.steps is not None and loop.session.step - loop.first_step >= task.steps
        return loop.cursor.epoch >= task.first_epoch + task.epochs or is_limited

    def portion(self) -> Generator[Any, None, None]:
        """From the cursor to the end of its epoch, through any number of regroupings."""
        loop, feed = self._loop, self._loop.task.feed
        while loop.session.held.gaps and loop.goes_on:
            yield from self._gap()
        started, epoch, before = time.perf_counter(), loop.cursor.epoch, loop.begin_portion()
        while loop.cursor.epoch == epoch and loop.goes_on:
            is_through = yield from loop.run_through(feed.batches(loop.cursor, self.dealing()))
            if is_through:
                loop.go_to(Cursor(epoch=epoch + 1))
        if loop.cursor.epoch > epoch:
            self._report_epoch(epoch, loop.reached - before, time.perf_counter() - started)

    def _gap(self) -> Generator[Any, None, None]:
        """Positions before the cursor that workers which ran free had not used when the checkpoint was made."""
        loop = self._loop
        gap, self._is_in_gap = loop.session.held.gaps[0], True
        try:
            start = Cursor(gap.epoch, gap.start)
            yield from loop.run_through(loop.task.feed.batches(start, self.dealing(), gap.stop))
        finally:
            self._is_in_gap = False

    def applied(self, batch: Batch, iteration: Iteration) -> None:  # noqa: ARG002  the batch says it all
        loop = self._loop
        if not self._is_in_gap:
            loop.go_to(batch.cursor_after)
            return
        loop.session.held.use_gap(batch.cursor_after.position)

    def _report_epoch(self, epoch: int, timed: int, seconds: float) -> None:
        session, samples, is_inside = self._loop.session, self._loop.reached, self._loop.session.is_inside_stretch
        session.reporter.send(step=session.step, now=True, is_inside=is_inside)
        if session.peers.group.rank == 0:
            event = EpochEnded(epoch=epoch, step=session.step, samples=samples, seconds=seconds, timed=timed)
            session.reporter.tell_of_steps(event, is_inside=is_inside)
