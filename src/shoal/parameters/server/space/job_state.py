"""What a server knows of one job: the map, the table, the ledger, its blocks, and the work that is still to be done."""

from __future__ import annotations

from shoal.codecs.registry import codec_by_name
from shoal.errors import ServerRefused, UsageError
from shoal.parameters import texts
from shoal.parameters.blocks.block_codec import BlockCodec
from shoal.parameters.ledger.effects import Begun
from shoal.parameters.ledger.sequencer import Sequencer
from shoal.parameters.server.space.work_queue import WorkQueue
from shoal.parameters.server.updates.holding import Holding
from shoal.values import ServerMap
from shoal.wire.keeper_messages import SpaceEnd
from shoal.wire.tables import TableSpec

MOST_CODECS = 16  # of one job; it has one at a time, and may have another after it was resumed


class JobCodecs:
    """Codecs of one job, for pushes from workers and values to them. Each is made when it is first named.

    Only codecs that are installed on the server's side are ever imported.
    """

    def __init__(self, server: int) -> None:
        self._server = server
        self._made: dict[str, BlockCodec] = {}  # by text, as in `--codec`

    def find(self, text: str, table: TableSpec) -> BlockCodec:
        """`text` as in `--codec`. `ServerRefused`: there is no such codec, or it has no such settings."""
        if text not in self._made:
            if len(self._made) >= MOST_CODECS:
                raise ServerRefused(f"a job has one codec, and this one has named {MOST_CODECS}", kind="bad-request")
            try:
                codec = codec_by_name(text)
            except UsageError as error:
                raise ServerRefused(texts.codec_unknown(self._server, error), kind="bad-request") from None
            self._made[text] = BlockCodec(table, text, codec)
        return self._made[text]


class JobState:
    """Changed by `space` alone."""

    def __init__(self, job: str, server: int) -> None:
        self.job = job
        self.server = server  # number of this one
        self.map: ServerMap | None = None  # the newest
        self.table: TableSpec | None = None
        self.holding: Holding | None = None  # under the map version that began here last
        self.sequencer = Sequencer(job, server)
        self.queue = WorkQueue()
        self.codecs = JobCodecs(server)
        self.end: SpaceEnd | None = None  # why the job has ended here and nothing of it is held; None: it has not

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
        """`view` is the newest map, and this server's blocks are laid out under it."""
        holding = self.holding
        return holding is not None and self.map is not None and view == holding.view == self.map.version
