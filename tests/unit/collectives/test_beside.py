"""A carrier beside an exchanger, on one machine or several: ranks compare before it is asked for anything, and who is
gone is named, also while it starts. Threads stand for ranks, and a table for NCCL: nothing here has two GPUs."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
import torch

from shoal.collectives import texts
from shoal.collectives.carriers import beside
from shoal.collectives.carriers.beside import BesideExchanger, exchange_by, nccl_beside
from shoal.collectives.carriers.carrier import Carrier, CarrierFailed, Work
from shoal.collectives.carriers.nccl import run_watched
from shoal.collectives.carriers.torch_carrier import CarrierPlace
from shoal.collectives.exchanger import Exchanger, Operation
from shoal.collectives.gpu.carrier_choice import NCCL, OWN, CarrierChoice, RankGpu
from shoal.collectives.gpu.gpu_way import GpuTerms
from shoal.collectives.group import Reduction
from shoal.errors import PeerLost, UsageError, WorkersDisagree
from shoal.transport.memory.neighbours import Exchange
from shoal.wire.frames import FrameKind
from support.collectives import IN_MEMORY, groups, in_threads, succeed

SIZE = 4  # two-level groups have three ranks on the first machine
CHOICE = CarrierChoice(NCCL, "for a test")


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


@pytest.fixture(params=[IN_MEMORY, "two-level", "tcp"], ids=["one machine", "two machines", "a machine each"])
def exchangers(request: pytest.FixtureRequest) -> Iterator[list[tuple[BesideExchanger, Table, Exchanger]]]:
    table: dict[int, torch.Tensor] = {}
    barrier = threading.Barrier(SIZE)
    with groups(request.param, SIZE) as made:
        carriers = [Table(rank, table, barrier) for rank in range(SIZE)]
        inside = [group._exchanger for group in made]
        yield [(BesideExchanger(carriers[r], inside[r]), carriers[r], inside[r]) for r in range(SIZE)]


def summing(elements: int, label: str = "sum") -> Operation:
    return Operation(FrameKind.ALL_REDUCE, 3, label, torch.float32, elements, Reduction.SUM)


def test_the_carrier_does_what_all_agree_on(exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]]) -> None:
    tensors = [torch.full((10,), float(rank)) for rank in range(SIZE)]
    succeed(*(lambda r=r: exchangers[r][0].all_reduce(summing(10), [tensors[r]]) for r in range(SIZE)))
    assert all(torch.equal(tensor, torch.full((10,), float(sum(range(SIZE))))) for tensor in tensors)
    assert exchangers[0][0].takes_gpu
    assert exchangers[0][0].bytes_sent == 2 * (SIZE - 1) * 40 // SIZE


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
    different = [errors[rank] for rank in (0, 2)]
    assert all(isinstance(error, WorkersDisagree | PeerLost) for error in different), "one may hear of the other first"
    assert any(isinstance(error, WorkersDisagree) and "99" in str(error) for error in different)


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
    for error in (errors[0], errors[1], errors[3]):
        assert isinstance(error, PeerLost)
        assert error.peer == 2


def test_bytes_of_any_length_are_exchanged(exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]]) -> None:
    given = [b"", b"GPU-1", b"x" * 1000, b"y"]
    told = succeed(*(lambda r=r: exchange_by(exchangers[r][2])(given[r]) for r in range(SIZE)))
    assert told == [given] * SIZE


class Library(Table):
    """A stand-in for NCCL's carrier. Its start does what the test says."""

    start: Callable[[], None]

    def __init__(
        self, exchange: Exchange, place: CarrierPlace, device: torch.device, check: Callable[[], None]
    ) -> None:
        super().__init__(place.rank, {}, threading.Barrier(1))
        run_watched(type(self).start, check, seconds=30)
        exchange(b"")


def started(
    monkeypatch: pytest.MonkeyPatch,
    exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]],
    start: Callable[[], None],
    choice: CarrierChoice = CHOICE,
) -> list[Callable[[], BesideExchanger | None]]:
    """What each rank does in its first collective on a GPU."""
    monkeypatch.setattr(Library, "start", staticmethod(start), raising=False)
    monkeypatch.setattr(beside, "NcclCarrier", Library)
    gpus = itertools.count()

    def own_facts(_device: torch.device) -> bytes:
        return msgspec.msgpack.encode(RankGpu("a", f"GPU-{next(gpus)}", "2.28.9", is_open=True))

    monkeypatch.setattr(beside, "own_facts", own_facts)
    terms = GpuTerms(machines=2, address="127.0.0.1", choice=choice)
    return [lambda r=r: nccl_beside(exchangers[r][2], torch.device("cpu"), terms) for r in range(SIZE)]


def dies(exchanger: Exchanger, after: float = 0.0) -> None:
    """A rank that compares its GPU with the others', and is gone before the library has started."""
    exchange_by(exchanger)(msgspec.msgpack.encode(RankGpu("a", "GPU-x", "2.28.9", is_open=True)))
    time.sleep(after)
    exchanger.abort("it is killed")


def test_tensors_that_are_on_one_gpu_after_all_go_through_host_memory(
    exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = started(monkeypatch, exchangers, lambda: None)
    same = msgspec.msgpack.encode(RankGpu("a", "GPU-0", "2.28.9", is_open=True))
    monkeypatch.setattr(beside, "own_facts", lambda _device: same)
    assert succeed(*calls) == [None] * SIZE


def test_a_carrier_that_was_chosen_is_started_on_all_ranks(
    exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = succeed(*started(monkeypatch, exchangers, lambda: None))
    assert [one is not None and one.rank for one in made] == list(range(SIZE))
    own = CarrierChoice(OWN, "rank 2 on b has no GPU")
    assert succeed(*started(monkeypatch, exchangers, lambda: None, own)) == [None] * SIZE


def test_ranks_that_were_told_nothing_yet_compare_their_gpus_first(
    exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]],
) -> None:
    terms = GpuTerms(machines=2, address="127.0.0.1")
    asked = (lambda r=r: nccl_beside(exchangers[r][2], torch.device("cpu"), terms) for r in range(SIZE))
    assert succeed(*asked) == [None] * SIZE, "there is no GPU here"


def test_who_dies_while_the_library_starts_is_named_although_the_start_never_ends(
    exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]], monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    calls = started(monkeypatch, exchangers, lambda: never.wait(60))
    calls[2] = lambda: dies(exchangers[2][2])
    try:
        errors = in_threads(*calls)
    finally:
        never.set()
    for error in (errors[0], errors[1], errors[3]):
        assert isinstance(error, PeerLost)
        assert error.peer == 2


def test_a_death_that_the_library_notices_first_is_no_mistake_of_the_user(
    exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's connections may break a moment before the group's own do."""

    def fail() -> None:
        raise RuntimeError("ncclRemoteError: remote process exited")

    calls = started(monkeypatch, exchangers, fail)
    calls[2] = lambda: dies(exchangers[2][2], after=0.3)
    errors = in_threads(*calls)
    assert all(isinstance(errors[rank], PeerLost) for rank in (0, 1, 3)), errors


def test_a_library_that_cannot_start_is_an_error_with_its_own_words(
    exchangers: Sequence[tuple[BesideExchanger, Table, Exchanger]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("no interface named eth7")

    errors = in_threads(*started(monkeypatch, exchangers, fail))
    assert {str(error) for error in errors} == {texts.nccl_fails(SIZE, "no interface named eth7")}
    assert all(isinstance(error, UsageError) for error in errors)


def test_a_start_that_takes_too_long_is_given_up() -> None:
    never = threading.Event()
    with pytest.raises(CarrierFailed, match="did not start within 0 s"):
        run_watched(lambda: never.wait(60) and None, lambda: None, seconds=0.05)
    never.set()
