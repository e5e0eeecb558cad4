"""Pushes that workers stage: what is taken, from which of a worker's connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from shoal.errors import ServerRefused
from shoal.parameters.connections.connection import Connection
from shoal.parameters.ledger.ledger import Ledger
from shoal.parameters.server.space.job_state import JobState
from shoal.parameters.server.space.stage_desk import StageDesk
from shoal.parameters.server.space.worker_line import WorkerLine
from shoal.parameters.server.updates.holding import Holding, layout_of
from shoal.wire.note import PARAMETER_VERSION, Note
from shoal.wire.parameter_messages import KeyList, ServerHello, Stage, StageDone, StageEnd
from shoal.wire.tables import PushId, TensorSpec
from support.model_tables import server_map, table_of
from support.shards import no_limit

TABLE = table_of(
    [TensorSpec(name="t", shape=(2000,), dtype="float32"), TensorSpec(name="d", shape=(9,), dtype="float64")]
)
PUSH = PushId(3, 1)


class Ear:
    """Stands for a connection."""

    def __init__(self) -> None:
        self.sent: list[Note] = []

    def send(self, note: Note) -> None:
        self.sent.append(note)


@pytest.fixture
def state() -> Iterator[JobState]:
    made = JobState("job", 0)
    made.map, made.table = server_map([0], [0], [0]), TABLE
    made.sequencer.ledger = Ledger(number=1, view=1)
    made.holding = Holding(layout_of(TABLE, made.map, 0), no_limit())
    yield made
    made.holding.close()


class Worker:
    """One connection of worker 3."""

    def __init__(self, desk: StageDesk, state: JobState) -> None:
        assert state.holding is not None
        self.ear = Ear()
        self._desk, self._holding = desk, state.holding
        hello = ServerHello(version=PARAMETER_VERSION, job="job", worker=3)
        self.line = WorkerLine(cast("Connection", self.ear), hello)
        self.line.learn(KeyList(digest=self._holding.keys, blocks=self._holding.layout.blocks))

    def note(self, unit: int) -> Stage:
        found = self._holding.layout.units[unit]
        return Stage(push=PUSH, view=1, keys=self._holding.keys, first=found.first, last=found.last)

    def begin(self, unit: int) -> Any:
        """The server has read the head of the message."""
        return self._desk.room(self.line, self.note(unit), self._holding.layout.units[unit].size)

    def stage(self, unit: int, value: int) -> None:
        room = self.begin(unit)
        if room is not None:
            room[:] = bytes([value]) * len(room)
        self._desk.staged(self.line, self.note(unit), room)

    def end(self) -> list[Note]:
        size = self._holding.layout.size
        self._desk.end(self.line, StageEnd(request=5, push=PUSH, view=1, size=size))
        return self.ear.sent


def test_a_worker_that_connects_anew_begins_again_though_its_old_connection_seems_to_live(state: JobState) -> None:
    desk = StageDesk(state, lambda _: None)
    old, new = Worker(desk, state), Worker(desk, state)
    old.stage(0, 1)
    half = old.begin(1)
    new.stage(0, 2)
    desk.staged(old.line, old.note(1), half)  # what was on its way there comes late
    old.stage(1, 1)
    assert old.end() == []
    new.stage(1, 2)
    assert [type(note) for note in new.end()] == [StageDone]
    desk.left(old.line)
    assert state.holding is not None
    staged = state.holding.staging.find(PUSH)
    assert staged is not None and staged.is_complete
    for unit in state.holding.layout.units:
        gradient = staged.gradient(unit)
        assert gradient is not None
        assert bytes(gradient.numpy().tobytes()) == bytes([2]) * unit.size


def test_one_connection_may_not_stage_the_same_twice(state: JobState) -> None:
    worker = Worker(StageDesk(state, lambda _: None), state)
    worker.stage(0, 1)
    with pytest.raises(ServerRefused, match="staged twice"):
        worker.stage(0, 1)
