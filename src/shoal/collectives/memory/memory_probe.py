"""Which way large tensors take between ranks of one machine: measured when a team forms, the same on all its ranks.

To all-reduce large tensors, ranks either read each other's memory or pass the bytes through shared slots. The sums have
the same bits either way. A process remembers the result for each number of ranks, so that only the first of many groups
measures.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from shoal.collectives.exchanger import Operation
from shoal.collectives.group import Reduction
from shoal.collectives.memory.memory_exchanger import MemoryExchanger
from shoal.collectives.memory.memory_loops import MemoryWays
from shoal.transport.memory.team import Team
from shoal.wire.frames import FrameKind

PROBE_BYTES = 16 * 1024 * 1024  # more than a core's cache: smaller tensors are fast either way
TURNS = 5
LEAST_GAIN = 0.8  # reading must take less than this part of the slots' time, since short trials vary on a busy machine


@dataclass(frozen=True)
class Found:
    """Seconds for `PROBE_BYTES`: the mean over all ranks of each rank's fastest turn."""

    slots: float
    reading: float

    @property
    def is_reading_faster(self) -> bool:
        return self.reading < LEAST_GAIN * self.slots

    def __str__(self) -> str:
        size = PROBE_BYTES // 2**20
        return f"{size} MB in {self.slots * 1e3:.2f} ms through shared slots, {self.reading * 1e3:.2f} ms by reading"


_remembered: dict[tuple[int, bool], Found] = {}  # by ranks on this machine, and whether the C loops are used


def best_ways(team: Team, ways: MemoryWays, ranks: Sequence[int]) -> tuple[MemoryWays, str]:
    """The given ways with the faster one for all-reduce, and why. All ranks of the team call it.

    `ranks`: ranks in the group, by place in the team; for errors.
    """
    if not ways.reads_memory:
        return ways, "its ranks may not read each other's memory: all goes through shared slots"
    key = (team.size, ways.is_native)
    known = _remembered.get(key)
    exchanger = MemoryExchanger(team, ways, 0, ranks)
    answers = _sum(
        exchanger, [float(known is not None), known.slots if known else 0.0, known.reading if known else 0.0]
    )
    if answers[0] == team.size:  # all ranks remember a result; these may differ, but their sum is the same for all
        found = Found(answers[1] / team.size, answers[2] / team.size)
    else:
        tensor = torch.ones(PROBE_BYTES // 4)  # not zeros: the kernel maps those to memory only when they are written
        other = MemoryExchanger(team, replace(ways, reads_to_reduce=True), 0, ranks)
        times = [_fastest(exchanger, tensor), _fastest(other, tensor)]
        slots, reading = _sum(exchanger, times)
        found = Found(slots / team.size, reading / team.size)
    _remembered[key] = found
    return replace(ways, reads_to_reduce=found.is_reading_faster), str(found)


def _fastest(exchanger: MemoryExchanger, tensor: torch.Tensor) -> float:
    taken = []
    for _ in range(TURNS):
        started = time.perf_counter()
        exchanger.all_reduce(_operation(tensor), [tensor])
        taken.append(time.perf_counter() - started)
    return min(taken)


def _sum(exchanger: MemoryExchanger, values: list[float]) -> list[float]:
    tensor = torch.tensor(values, dtype=torch.float64)
    exchanger.all_reduce(_operation(tensor), [tensor])
    found: list[float] = tensor.tolist()
    return found


def _operation(tensor: torch.Tensor) -> Operation:
    return Operation(FrameKind.ALL_REDUCE, 0, "trying out memory", tensor.dtype, tensor.numel(), Reduction.SUM)
