"""Peers of a script that runs alone: a generation of one, no coordinator, nothing that can fail, no checkpoints."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from shoal.codecs.identity import Identity
from shoal.collectives.group import Group
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import ShoalError
from shoal.events import AnyEvent
from shoal.strategies.peers.peers import JobOver, Peers, Traffic
from shoal.values import Address, Generation, Member
from shoal.wire.messages import ExchangeBroken, PartFailed, PartWritten, Ready


class SoloPeers(Peers):
    has_others = False

    def __init__(self, on_event: Callable[[AnyEvent], None]) -> None:
        self.worker = 0
        self.is_new = False
        me = Member(rank=0, worker=0, host=socket.gethostname(), process=os.getpid(), address=Address("127.0.0.1", 0))
        self.generation = Generation(
            number=1, members=(me,), schedule="auto", codec="identity", reason="the script runs in one process"
        )
        self.group: Group = ThreadedGroup.over(None, generation=1, schedule="auto", codec=Identity())
        self._on_event = on_event

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
        for event in events:
            self._on_event(event)

    def stop_wish(self) -> str | None:
        return None

    def set_position(self, step: int, operation: str) -> None:
        pass

    def part_done(self, message: PartWritten | PartFailed) -> None:
        pass

    def settlement(self, checkpoint: str, timeout: float) -> bool | None:  # noqa: ARG002  there is none to wait for
        return False

    def traffic(self) -> Traffic:
        return Traffic()

    def close(self) -> None:
        self.group.close()
