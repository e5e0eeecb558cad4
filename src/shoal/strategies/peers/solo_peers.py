"""Peers of a script that runs alone: a generation of one, and a coordinator in the same process.

Nothing between processes can fail. Not here: the record and checkpoints (`membership.inner_coordinator`).
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from shoal.codecs.identity import Identity
from shoal.collectives.group import Group
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import ShoalError
from shoal.events import AnyEvent, GenerationFormed, JobStarted, StopRequested, WorkerJoined
from shoal.membership.inner_coordinator import InnerCoordinator, Show
from shoal.strategies.peers.peers import JobOver, Peers, Traffic
from shoal.values import Address, Generation, Member
from shoal.wire.messages import ExchangeBroken, PartFailed, PartWritten, Ready


class SoloPeers(Peers):
    has_others = False

    def __init__(self, show: Show, run_dir: Path | None = None, *, after_generation: int = 0) -> None:
        """`run_dir`: of a script that is recorded from its beginning. `after_generation`: the highest one of the
        checkpoints that are there already."""
        self.worker = 0
        self.is_new = False
        me = Member(rank=0, worker=0, host=socket.gethostname(), process=os.getpid(), address=Address("127.0.0.1", 0))
        self.generation = Generation(
            number=after_generation + 1,
            members=(me,),
            schedule="auto",
            codec="identity",
            reason="the script runs in one process",
        )
        number = self.generation.number
        self.group: Group = ThreadedGroup.over(None, generation=number, schedule="auto", codec=Identity())
        self.coordinator = InnerCoordinator(self.generation, show, run_dir)
        self._stop: str | None = None  # why the script is to stop, where that was asked for from outside
        self._stop_is_told = False

    def begin(self, started: JobStarted) -> None:
        """Begin the record as a job of one worker does."""
        me, formed = self.generation.members[0], self.generation
        self.coordinator.record(
            started,
            WorkerJoined(worker=0, host=me.host, process=me.process, address=""),
            GenerationFormed(
                generation=formed.number,
                workers=(0,),
                schedule=formed.schedule,
                codec=formed.codec,
                reason=formed.reason,
            ),
        )

    def ask_to_stop(self, reason: str) -> None:
        """From a signal handler, which may have interrupted anything: nothing is noted or drawn here."""
        self._stop = reason

    def leave_group(self, reason: str) -> None:
        self.group.abort(reason)

    def tell(self, notice: Ready | ExchangeBroken) -> None:
        what = f"{notice.operation} failed: {notice.reason}" if isinstance(notice, ExchangeBroken) else "it has none"
        raise JobOver(ShoalError(f"a script that runs alone asked for another group: {what}"))

    def await_generation(self, after: int) -> Generation:
        raise JobOver(ShoalError(f"a script that runs alone has no generation after {after}"))

    def connect(self, generation: Generation) -> None:
        raise JobOver(ShoalError(f"a script that runs alone cannot be in generation {generation.number}"))

    def regroup_wish(self) -> str | None:
        return None

    def leave_wish(self) -> str | None:
        return None

    def hold(self, *, at_end: bool = False) -> None:
        pass

    def report(self, *events: AnyEvent) -> None:
        self.coordinator.record(*events)

    def stop_wish(self) -> str | None:
        if self._stop is not None and not self._stop_is_told:
            self._stop_is_told = True
            self.coordinator.record(StopRequested(worker=None, reason=self._stop))
        return self._stop

    def set_position(self, step: int, operation: str) -> None:
        pass

    def part_done(self, message: PartWritten | PartFailed) -> None:
        self.coordinator.part_done(message)

    def settlement(self, checkpoint: str, timeout: float) -> bool | None:  # noqa: ARG002  it is settled already
        return self.coordinator.is_published(checkpoint)

    def traffic(self) -> Traffic:
        return Traffic()

    def close(self) -> None:
        self.group.close()
