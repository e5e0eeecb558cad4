"""A carrier beside an exchanger for memory: ranks compare before it is asked for anything. Threads stand for ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import torch

from shoal.collectives.carriers.beside import BesideExchanger, exchange_by, have_one_each
from shoal.collectives.carriers.carrier import Carrier, CarrierFailed, Work
from shoal.collectives.exchanger import Exchanger, Operation
from shoal.collectives.group import Reduction
from shoal.errors import PeerLost, WorkersDisagree
from shoal.wire.frames import FrameKind
from support.collectives import IN_MEMORY, groups, in_threads, succeed

SIZE = 3


class Placed(Work):
    def __init__(self, carrier: Table) -> None:
        self._carrier = carrier

    def wait(self, seconds: float) -> bool:
        if self._carrier.is_aborted:
            raise CarrierFailed("aborted")
        if self._carrier.is_stuck:
            time.sleep(seconds)
        return not self._carrier.is_stuck


class Table(Carrier):
    """All ranks put their tensors on one table and add them up; it knows nothing else."""

    name = "table"
    takes_gpu = True

    def __init__(self, rank: int, table: dict[int, torch.Tensor], all_are_here: threading.Barrier) -> None:
        self._rank, self._table, self._barrier = rank, table, all_are_here
        self.asked = 0
        self.is_stuck = self.is_aborted = False

    def reduces(self, dtype: torch.dtype, reduction: Reduction) -> bool:
        return reduction is Reduction.SUM

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Work:
        self.asked += 1
        if not self.is_stuck:
            self._table[self._rank] = tensor.clone()
            self._barrier.wait(30)
            tensor.copy_(torch.stack([self._table[rank] for rank in range(SIZE)]).sum(0))
            self._barrier.wait(30)
        return Placed(self)

    def reduce_scatter(self, *given: object) -> Work:
        raise NotImplementedError

    def all_to_all(self, received: torch.Tensor, *given: object) -> Work:
        self.asked += 1
        return Placed(self)

    all_gather = broadcast = reduce_scatter

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        pass


@pytest.fixture
def exchangers() -> Iterator[list[tuple[BesideExchanger, Table, Exchanger]]]:
    table: dict[int, torch.Tensor] = {}
    barrier = threading.Barrier(SIZE)
    with groups(IN_MEMORY, SIZE) as made:
        carriers = [Table(rank, table, barrier) for rank in range(SIZE)]
        inside = [group._exchanger for group in made]
        yield [(BesideExchanger(carriers[r], inside[r]), carriers[r], inside[r]) for r in range(SIZE)]


def summing(elements: int, label: str = "sum") -> Operation:
    return Operation(FrameKind.ALL_REDUCE, 3, label, torch.float32, elements, Reduction.SUM)


def test_the_carrier_does_what_all_agree_on(exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]]) -> None:
    tensors = [torch.full((10,), float(rank)) for rank in range(SIZE)]
    succeed(*(lambda r=r: exchangers[r][0].all_reduce(summing(10), [tensors[r]]) for r in range(SIZE)))
    assert all(torch.equal(tensor, torch.full((10,), 3.0)) for tensor in tensors)
    assert exchangers[0][0].takes_gpu
    assert exchangers[0][0].bytes_sent == 2 * 2 * 40 // SIZE


@pytest.mark.parametrize("other", [summing(11), summing(10, "another")], ids=["sizes", "labels"])
def test_ranks_that_differ_are_told_and_the_carrier_is_not_asked(
    exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]], other: Operation
) -> None:
    def reduce(rank: int) -> None:
        operation = other if rank == 1 else summing(10)
        exchangers[rank][0].all_reduce(operation, [torch.ones(operation.elements)])

    errors = in_threads(*(lambda r=r: reduce(r) for r in range(SIZE)))
    assert any(isinstance(error, WorkersDisagree) for error in errors)
    assert not any(carrier.asked for _, carrier, _ in exchangers)


def test_sizes_of_all_to_all_are_compared_by_pair(
    exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]],
) -> None:
    operation = Operation(FrameKind.ALL_TO_ALL, 4, "trade", torch.float32, 0)

    def trade(rank: int, wrong: int) -> None:
        inputs = [torch.ones(1 + SIZE * rank + to) for to in range(SIZE)]
        outputs = [torch.ones(1 + SIZE * source + rank) for source in range(SIZE)]
        if rank == 0 and wrong:
            outputs[2] = torch.ones(99)
        exchangers[rank][0].all_to_all(operation, outputs, inputs)

    succeed(*(lambda r=r: trade(r, 0) for r in range(SIZE)))
    errors = in_threads(*(lambda r=r: trade(r, 1) for r in range(SIZE)))
    assert [isinstance(error, WorkersDisagree) for error in errors] == [True, False, True]
    assert "99" in str(errors[0])


def test_who_is_gone_is_named_while_the_carrier_hangs(
    exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]],
) -> None:
    for _, carrier, _ in exchangers:
        carrier.is_stuck = True

    def reduce(rank: int) -> None:
        if rank == 2:
            exchangers[2][0]._agree(summing(10), [10])
            exchangers[2][2].abort("going away")
        else:
            exchangers[rank][0].all_reduce(summing(10), [torch.ones(10)])

    errors = in_threads(*(lambda r=r: reduce(r) for r in range(SIZE)))
    for error in errors[:2]:
        assert isinstance(error, PeerLost)
        assert error.peer == 2


def test_bytes_of_any_length_are_exchanged(exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]]) -> None:
    given = [b"", b"GPU-1", b"x" * 1000]
    told = succeed(*(lambda r=r: exchange_by(exchangers[r][2])(given[r]) for r in range(SIZE)))
    assert told == [given] * SIZE


def test_nccl_is_for_ranks_that_have_a_gpu_each() -> None:
    assert have_one_each([b"GPU-1", b"GPU-2"])
    assert not have_one_each([b"GPU-1", b"GPU-1"])
    assert not have_one_each([b"GPU-1", b""])
