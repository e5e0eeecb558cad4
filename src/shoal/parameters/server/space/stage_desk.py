"""What workers stage on a server: taken if it goes by the map that has begun here, and kept until it is decided.

A push that goes by another map is not taken, and its end is answered with the newest map. After a broken connection a
worker may stage a push again that is complete or decided here already; its bytes are read and thrown away. Not here:
where the bytes are kept (`staging`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from shoal.errors import ServerRefused
from shoal.parameters.server.space.job_state import JobState
from shoal.parameters.server.space.worker_line import WorkerLine, send_elsewhere
from shoal.wire.ledger_entries import Assign, Push
from shoal.wire.parameter_messages import Discard, PushReleased, Stage, StageDone, StageEnd
from shoal.wire.tables import PushId

KEPT_DECISIONS = 64  # newest decided pushes of each worker


class StageDesk:
    def __init__(self, state: JobState, discard: Callable[[PushId], None]) -> None:
        """`discard` is called with pushes that will never be proposed."""
        self._state = state
        self._discard = discard
        self._stagers: dict[int, WorkerLine] = {}  # by worker: the connection that it staged on last
        self._decided: dict[int, OrderedDict[int, None]] = {}  # by worker: numbers of pushes

    # From workers

    def room(self, line: WorkerLine, note: Stage, size: int) -> memoryview | None:
        if note.place >= 0 or not self._takes(line, note):
            return None
        holding = self._state.holding
        assert holding is not None, "it is current"
        codec = self._state.codecs.find(note.codec, holding.table) if note.codec else None
        return holding.staging.room(note, size, codec)

    def staged(self, line: WorkerLine, note: Stage, payload: memoryview | None) -> None:
        holding = self._state.holding
        if note.place < 0:
            if payload is None or line.is_replaced:
                return  # `room` did not take it
            if not payload:
                raise ServerRefused(f"push {note.push.number} is staged without bytes or a place", kind="bad-request")
            if holding is None or holding.view != note.view:
                line.miss(note.push)  # the map changed while it came
            else:
                holding.staging.arrived(note)
            return
        if not self._takes(line, note):
            return
        if line.arena is None:
            raise ServerRefused(
                f"worker {line.worker} names a place in its memory, which this server cannot see", kind="bad-request"
            )
        assert holding is not None, "it is current"
        if len(line.arena) > holding.largest_arena:
            raise ServerRefused(
                f"worker {line.worker} shares {len(line.arena)} bytes of memory; the job's table needs at most "
                f"{holding.largest_arena}",
                kind="bad-request",
            )
        holding.staging.place(note, line.arena)

    def end(self, line: WorkerLine, note: StageEnd) -> None:
        holding = self._state.holding
        self._check_owner(line, note.push)
        if line.is_replaced:
            return  # the worker does not read this connection any more
        if not note.request:
            self._answer_whether_free(line, note.push)
            return
        if note.push in line.missed or holding is None or not self._state.is_current(note.view):
            line.missed.discard(note.push)
            self._drop_parts(line.worker, note.push)
            send_elsewhere(line, note.request, self._state)
            return
        staged = holding.staging.find(note.push)
        if self._is_decided(note.push):
            line.connection.send(PushReleased(push=note.push))
        elif staged is None or not staged.is_complete:
            holding.staging.end(note)
        applied = self._state.queue.applied(self._state.newest)
        line.connection.send(StageDone(request=note.request, push=note.push, applied=applied))

    def discard(self, line: WorkerLine, note: Discard) -> None:
        self._check_owner(line, note.push)
        line.missed.discard(note.push)
        if not self._is_decided(note.push):
            self._discard(note.push)

    def _answer_whether_free(self, line: WorkerLine, push: PushId) -> None:
        """After a reconnect: an earlier `PushReleased` may be lost. A push that is not here any more is not read."""
        holding = self._state.holding
        if holding is None or holding.staging.find(push) is None:
            line.connection.send(PushReleased(push=push))
        else:
            self._replace(line)  # so that this connection is told once the push is decided

    def left(self, line: WorkerLine) -> None:
        """Drop what was staged in part. A whole push may have been proposed: the ledger decides about it."""
        if self._stagers.get(line.worker) is line:
            del self._stagers[line.worker]
            self._drop_parts(line.worker)

    # From the space

    def decided(self, push: PushId, *, tell: bool) -> None:
        """`tell`: some of the push was in the worker's memory, which is free again."""
        known = self._decided.setdefault(push.worker, OrderedDict())
        known[push.number] = None
        while len(known) > KEPT_DECISIONS:
            known.popitem(last=False)
        if tell and (line := self._stagers.get(push.worker)) is not None:
            line.connection.send(PushReleased(push=push))

    def lacks(self, entry: Push | Assign) -> bool:
        """The push is not whole here, so it could not be applied. A push of another map is void anyway."""
        holding = self._state.holding
        if holding is None or entry.view != holding.view or not self._state.is_begun or not holding.layout.blocks:
            return False
        staged = holding.staging.find(entry.push)
        return not self._is_decided(entry.push) and (staged is None or not staged.is_complete)

    # Pieces of the above

    def _takes(self, line: WorkerLine, note: Stage) -> bool:
        """False: this message is not to be staged, either not now or not at all."""
        self._check_owner(line, note.push)
        holding = self._state.holding
        if line.is_replaced:
            return False
        if holding is None or not self._state.is_current(note.view):
            line.miss(note.push)
            return False
        line.knows(note.keys)
        if note.keys != holding.keys:
            line.miss(note.push)
            return False
        self._replace(line)
        staged = holding.staging.find(note.push)
        return not self._is_decided(note.push) and (staged is None or not staged.is_complete)

    def _replace(self, line: WorkerLine) -> None:
        """A worker that has reconnected stages again. The end of its old connection may be noticed late."""
        older = self._stagers.get(line.worker)
        if older is not None and older is not line:
            older.is_replaced = True
            self._drop_parts(line.worker)
        self._stagers[line.worker] = line

    def _check_owner(self, line: WorkerLine, push: PushId) -> None:
        if push.worker != line.worker:
            raise ServerRefused(f"worker {line.worker} speaks of a push of worker {push.worker}", kind="bad-request")

    def _is_decided(self, push: PushId) -> bool:
        return push.number in self._decided.get(push.worker, ())

    def _drop_parts(self, worker: int, only: PushId | None = None) -> None:
        if (holding := self._state.holding) is None:
            return
        for push in holding.staging.of_worker(worker):
            staged = holding.staging.find(push)
            if staged is not None and not staged.is_complete and only in (None, push):
                holding.staging.drop(push)
