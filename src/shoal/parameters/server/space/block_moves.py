"""Blocks on their way between servers under a new map: this server fetches what it lacks and sends what others lack.

Updates go on meanwhile; updates of a block that is on its way are kept until it arrives (`shard`). Not here: which
server lacks what (`placement`), in which portions blocks are asked for (`filling`).
"""

from __future__ import annotations

import torch

from shoal.parameters.blocks.byte_views import bytes_of
from shoal.parameters.blocks.table_blocks import blocks_of
from shoal.parameters.server.space.filling import Filling, Portion
from shoal.parameters.server.space.job_state import JobState
from shoal.parameters.server.space.site import Site
from shoal.parameters.server.updates.holding import Holding
from shoal.wire.keeper_messages import Lost
from shoal.wire.parameter_messages import Fetch, Fetched


class BlockMoves:
    def __init__(self, state: JobState, site: Site) -> None:
        self._state = state
        self._site = site
        self._filling: Filling | None = None  # None: nothing is missing under the present map
        self._fetches: list[tuple[int, Fetch]] = []  # unanswered, with the server that asks
        self._arrivals: list[tuple[int, Fetched, memoryview]] = []  # not installed yet, with their sender

    @property
    def are_over(self) -> bool:
        """This server has all of its blocks that any server has."""
        return self._filling is None or self._filling.is_over

    @property
    def size(self) -> int:
        """Bytes that came under the present map."""
        return 0 if self._filling is None else self._filling.size

    def connected(self, server: int) -> None:
        """There is a new connection to a server: ask again, as the request may be lost."""
        if self._filling is not None and (portion := self._filling.asked(server)) is not None:
            self._ask(portion)

    def begin(self, holding: Holding) -> None:
        """Under a new map: ask for what is missing."""
        self._filling, self._arrivals = None, []
        ledger = self._state.sequencer.ledger
        if ledger is None or not ledger.has_values:
            return
        fetches = holding.fetches()
        every = blocks_of(holding.table)
        sizes = {block: every[block].size for blocks in fetches.values() for block in blocks}
        self._filling = Filling(fetches, sizes)
        if lost := holding.lost():
            size = holding.size_of(lost)
            self._site.to_keeper(Lost(view=holding.view, job=self._state.job, blocks=len(lost), size=size))
        for portion in self._filling.due():
            self._ask(portion)
        self._serve()

    def end(self) -> None:
        """The job has ended here: forget all moves."""
        self._filling, self._fetches, self._arrivals = None, [], []

    def _ask(self, portion: Portion) -> None:
        assert self._state.holding is not None, "a holding is filled"
        self._state.holding.shard.ask(portion.blocks)
        note = Fetch(
            request=portion.request,
            job=self._state.job,
            view=self._state.holding.view,
            blocks=portion.blocks,
            at_least=self._state.queue.touched(self._state.newest),
        )
        self._site.to_server(portion.source, note)

    def fetch(self, sender: int, note: Fetch) -> None:
        """Another server wants blocks. Answered once this server has begun that map and applied entry `at_least`."""
        self._fetches = [(other, fetch) for other, fetch in self._fetches if other != sender]  # one request at a time
        self._fetches.append((sender, note))
        self._serve()

    def _serve(self) -> None:
        """Answer requests, but only between two entries, so that all blocks include the same entries."""
        if self._state.queue.done or self._state.holding is None:
            return
        applied, holding = self._state.queue.applied(self._state.newest), self._state.holding
        waiting = []
        for sender, note in self._fetches:
            if note.view > holding.view or (note.view == holding.view and note.at_least > applied):
                waiting.append((sender, note))
            elif note.view == holding.view:
                here = holding.present(note.blocks)
                state, payload = holding.shard.extract(here)
                answer = Fetched(
                    request=note.request, job=self._state.job, view=note.view, blocks=here, applied=applied, state=state
                )
                self._site.crash_at("fetch")
                self._site.to_server(sender, answer, payload)
        self._fetches = waiting

    def room(self, note: Fetched, size: int) -> memoryview | None:
        if self._state.holding is None or note.view != self._state.holding.view:
            return None
        return bytes_of(torch.empty(size, dtype=torch.uint8))

    def fetched(self, sender: int, note: Fetched, payload: memoryview | None) -> None:
        """Blocks have arrived; the next `advance` installs them."""
        holding, filling = self._state.holding, self._filling
        if holding is not None and filling is not None and note.view == holding.view and payload is not None:
            self._arrivals.append((sender, note, payload))

    def advance(self) -> bool:
        """The ledger or the blocks have changed: do what has become possible. True: blocks were installed."""
        self._serve()
        return self._insert()

    def _insert(self) -> bool:
        """Install blocks. Those ahead of this server wait: it would apply entries again that they already include."""
        holding, filling = self._state.holding, self._filling
        if holding is None or filling is None:
            return False
        applied, is_new = self._state.queue.applied(self._state.newest), False
        arrivals, self._arrivals = self._arrivals, []
        for sender, note, payload in arrivals:
            if note.applied > applied:
                self._arrivals.append((sender, note, payload))
            elif filling.arrived(sender, note.request, note.blocks):
                holding.shard.insert(note.blocks, note.state, payload, note.applied)
                is_new = True
                self._site.crash_at("fetched")
        for portion in filling.due():
            self._ask(portion)
        return is_new
