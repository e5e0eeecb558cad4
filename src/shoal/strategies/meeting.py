"""What strategies have in common whose workers meet in a group: votes, averaged buffers, comparing replicas."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import torch
from torch import nn

from shoal.bounds import Text
from shoal.checkpoint.peer_copy import broadcast_bytes
from shoal.errors import WorkersDisagree
from shoal.strategies.buffers import BufferAverage
from shoal.strategies.model_check import digest
from shoal.strategies.notes import DIGEST_LIMIT, NoteBoard
from shoal.strategies.peers import Peers
from shoal.strategies.strategy import Agreement, Strategy, Votes


class MeetingStrategy(Strategy):
    """Agreement at points that all workers pass. How gradients become updates is its children's business."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.votes = Votes()
        self._board = NoteBoard(peers, self.votes)
        self._buffers = BufferAverage()
        self._models: dict[str, nn.Module] = {}

    def agree(self, point: str, *, compare: bool = False, terms: int = 0) -> Agreement:
        group = self._peers.group
        self.compared = None
        self._buffers.refresh()
        if not self._meet(point, self._buffers.changed(), terms):
            return Agreement(is_same=False)
        if compare and group.size > 1:
            self.compared = self.digest()
            buffers = digest(self._models.values(), of_buffers=True)
            note = self._board.write(0.0, [], (self.compared * 1_000_003 + buffers) % DIGEST_LIMIT)
            group.all_reduce(note.vector, label=f"{point}, comparison").wait()
            if not self._board.read(note).is_same:
                raise WorkersDisagree(
                    f"the replicas have come apart: worker {self._peers.worker} has other parameters or buffers; "
                    "change them through optimizer.step() only, or in the same way on every worker"
                )
        return Agreement(stop=self._stop_reason() if self.votes.stop_seen else None)

    def _meet(self, point: str, changed: list[bool], terms: int) -> bool:
        """Exchange votes; buffers that changed since the last exchange are averaged, each worker counting once.

        Returns whether all workers have the same `terms`; where they have not, no buffer is touched.
        """
        group = self._peers.group
        note = self._board.write(1.0, changed, terms)
        group.all_reduce(note.vector, label=point).wait()
        reading = self._board.read(note)
        if group.size > 1 and reading.is_same:
            with torch.no_grad():
                self._buffers.launch(group, reading.changed, weight=1.0 / group.size, label=point).finish()
        return reading.is_same

    def _stop_reason(self) -> str:
        """Some worker votes for a stop and all know it: take the reason of the lowest rank that has one."""
        group = self._peers.group
        mine = self.votes.stop or self._peers.stop_wish()
        has_reason = torch.zeros(group.size, dtype=torch.uint8)
        has_reason[group.rank] = mine is not None
        group.all_reduce(has_reason, label="who wants to stop").wait()
        source = int(has_reason.argmax().item())
        data = broadcast_bytes(msgspec.msgpack.encode(mine or ""), source, group, label="reason for stopping")
        return msgspec.msgpack.decode(data, type=Text)

    def digest(self, names: Collection[str] | None = None) -> int:
        chosen = [model for name, model in self._models.items() if names is None or name in names]
        return digest(chosen) % DIGEST_LIMIT

    def rebind(self) -> None:
        # A vote that was seen may have come from a worker that is gone, and not all may have seen it.
        self.votes.stop_seen = self.votes.regroup_seen = self.votes.leaving = False
        self.votes.leaving_seen = 0

    def state_replaced(self) -> None:
        self._buffers.refresh()
        self._buffers.remember()

    def is_changed(self, buffer: torch.Tensor) -> bool:
        return self._buffers.is_changed(buffer)

    def forget(self, buffer: torch.Tensor) -> None:
        self._buffers.forget(buffer)

    def detach(self) -> None:
        self._models = {}
        self._buffers = BufferAverage()
