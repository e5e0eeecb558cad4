"""An exchanger for several machines: memory inside each, one flow per machine between them.

The first rank of a machine is its leader. Ranks reduce inside each machine, leaders reduce among themselves over the
mesh, and the other ranks copy their leader's result. All-to-all has different bytes for every pair, so it goes over the
mesh directly.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from shoal.collectives import flat_tensors
from shoal.collectives.exchanger import Exchanger, Operation
from shoal.collectives.memory.memory_exchanger import MemoryExchanger
from shoal.collectives.schedules.scheduled_exchanger import ScheduledExchanger


class TwoLevelExchanger(Exchanger):
    def __init__(
        self,
        hosts: Sequence[Sequence[int]],
        inside: MemoryExchanger | None,
        leaders: ScheduledExchanger | None,
        everybody: ScheduledExchanger,
    ) -> None:
        """`hosts`: ranks by machine. `inside`: serves the ranks of this machine; None if there is only one. `leaders`:
        serves the leaders; None on other ranks. This exchanger owns all three exchangers from now on."""
        self.rank, self.size = everybody.rank, everybody.size
        self._hosts = [list(host) for host in hosts]
        self._home = next(place for place, host in enumerate(self._hosts) if self.rank in host)
        self._inside = inside
        self._leaders = leaders
        self._everybody = everybody

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]  # counted below
        """Between machines."""
        return self._everybody.bytes_sent

    @property
    def idle_seconds(self) -> float:  # type: ignore[override]  # counted below
        return self._everybody.idle_seconds + (0.0 if self._inside is None else self._inside.idle_seconds)

    def all_reduce(self, operation: Operation, tensors: Sequence[torch.Tensor]) -> None:
        if self._inside is not None:
            self._inside.all_reduce(operation, tensors)
            operation = msgspec.structs.replace(operation, scale=1.0)
        if self._leaders is not None:
            self._leaders.all_reduce(operation, tensors)
        self._take_over(operation, tensors)

    def reduce_scatter(self, operation: Operation, output: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
        copies = [flat_tensors.copy_of(part) for part in parts]
        if self._inside is not None:
            self._inside.all_reduce(operation, copies)
        elif operation.scale != 1.0:
            for copy in copies:
                copy.mul_(operation.scale)
        operation = msgspec.structs.replace(operation, scale=1.0)
        if self._leaders is not None:
            by_host = [[copies[rank] for rank in host] for host in self._hosts]
            self._leaders.reduce_scatter_in_place(operation, by_host)
        own_host = self._hosts[self._home]
        if self._inside is None:
            output.copy_(copies[self.rank])
            return
        nothing = output[:0]
        sums = [copies[rank] for rank in own_host] if self._leaders is not None else [nothing] * len(own_host)
        outputs = [output] + [nothing] * (len(own_host) - 1)  # everything comes from the leader, which is first
        self._inside.all_to_all(operation, outputs, sums)

    def all_gather(self, operation: Operation, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        if self._inside is None:
            outputs[self.rank].copy_(tensor)
        else:
            self._inside.all_gather(operation, [outputs[rank] for rank in self._hosts[self._home]], tensor)
        if self._leaders is not None:
            self._leaders.all_gather_in_place(operation, [[outputs[rank] for rank in host] for host in self._hosts])
        others = [output for rank, output in enumerate(outputs) if rank not in self._hosts[self._home]]
        self._take_over(operation, others)

    def all_to_all(self, operation: Operation, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        self._everybody.all_to_all(operation, outputs, inputs)

    def broadcast(self, operation: Operation, tensor: torch.Tensor, source: int) -> None:
        home = next(place for place, host in enumerate(self._hosts) if source in host)
        if self._inside is not None and home == self._home:
            self._inside.broadcast(operation, tensor, self._hosts[home].index(source))
        if self._leaders is not None:
            self._leaders.broadcast(operation, tensor, home)
        if home != self._home:
            self._take_over(operation, [tensor])

    def _take_over(self, operation: Operation, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the result of this machine's leader."""
        if self._inside is not None:
            self._inside.broadcast_all(operation, tensors, 0)

    def is_awaited(self, awaited: bool) -> None:
        if self._inside is not None:
            self._inside.is_awaited(awaited)

    def missing(self) -> list[int]:
        inside = [] if self._inside is None else self._inside.missing()
        between = [] if self._leaders is None else [self._hosts[place][0] for place in self._leaders.missing()]
        return sorted({*inside, *between, *self._everybody.missing()})

    def check(self) -> None:
        for exchanger in (self._inside, self._everybody):
            if exchanger is not None:
                exchanger.check()

    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        for exchanger in (self._inside, self._leaders, self._everybody):
            if exchanger is not None:
                exchanger.abort(reason, blamed=blamed)

    def close(self) -> None:
        for exchanger in (self._inside, self._leaders, self._everybody):
            if exchanger is not None:
                exchanger.close()
