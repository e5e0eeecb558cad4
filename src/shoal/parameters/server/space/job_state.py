"""What a server knows of one job: the map, the table, the ledger, its blocks, and what is still to be done to them."""

from __future__ import annotations

from shoal.parameters.ledger.effects import Begun
from shoal.parameters.ledger.sequencer import Sequencer
from shoal.parameters.server.space.work_queue import WorkQueue
from shoal.parameters.server.updates.holding import Holding
from shoal.values import ServerMap
from shoal.wire.keeper_messages import SpaceEnd
from shoal.wire.tables import TableSpec


class JobState:
    """Changed by `space` alone."""

    def __init__(self, job: str, server: int) -> None:
        self.job = job
        self.server = server  # number of this one
        self.map: ServerMap | None = None  # the newest
        self.table: TableSpec | None = None
        self.holding: Holding | None = None  # of the version that has begun here last
        self.sequencer = Sequencer(job, server)
        self.queue = WorkQueue()
        self.end: SpaceEnd | None = None  # why the job is over here: nothing of it is held any more; None: it is not

    @property
    def newest(self) -> int:
        """Number of the last entry of the ledger."""
        return max(self.sequencer.number, 0)

    @property
    def is_begun(self) -> bool:
        """The newest map has begun here, in the ledger and for the blocks."""
        ledger = self.sequencer.ledger
        return (
            ledger is not None
            and self.map is not None
            and ledger.view == self.map.version
            and not any(isinstance(work, Begun) for work in self.queue)
        )

    def is_current(self, view: int) -> bool:
        """Who speaks goes by the newest map, and it has begun here."""
        holding = self.holding
        return holding is not None and self.map is not None and view == holding.view == self.map.version
