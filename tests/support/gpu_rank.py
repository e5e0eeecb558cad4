"""One of two ranks that share a GPU: does every check below and says what came of it, a line of JSON each.

`python -m support.gpu_rank RANK STORE`. A check raises where something is wrong.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shoal.collectives.carriers.beside import BesideExchanger
from shoal.collectives.carriers.nccl import NcclCarrier
from shoal.collectives.carriers.torch_carrier import CarrierPlace
from shoal.collectives.exchanger import Exchanger, Operation
from shoal.collectives.gpu.pinned_memory import pool
from shoal.collectives.group import Reduction
from shoal.errors import UsageError
from shoal.wire.frames import FrameKind

SIZE = 2
LONG = 20_000_003  # elements: several turns and a rest
GPU = torch.device("cuda", 0)

Check = Callable[[int], None]


def values(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, different on every rank: sums are exact."""
    return (torch.arange(count) % 7 + 3 * rank).to(dtype)


def total(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return values(0, count, dtype) + values(1, count, dtype)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.is_cuda
    assert torch.equal(found.cpu(), expected), (found.cpu()[:8], expected[:8])


def sums_of_every_size_and_type(rank: int) -> None:
    types = (torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for dtype in types:
        for count in (0, 1, 1000, 300_001, 3_000_001):
            tensor = values(rank, count, dtype).to(GPU)
            dist.all_reduce(tensor)
            same(tensor, total(count, dtype))
    tensor = values(rank, LONG).to(GPU)
    dist.all_reduce(tensor)
    same(tensor, total(LONG))


def other_reductions(rank: int) -> None:
    for operator, expected in (
        (dist.ReduceOp.MAX, values(1, 5000)),
        (dist.ReduceOp.MIN, values(0, 5000)),
        (dist.ReduceOp.AVG, total(5000) / 2),
    ):
        tensor = values(rank, 5000).to(GPU)
        dist.all_reduce(tensor, operator)
        same(tensor, expected)
    for dtype in (torch.uint8, torch.int8, torch.int32, torch.int64):
        whole = torch.tensor([-7 if dtype.is_signed else 7, 100, 3], dtype=dtype) * (rank + 1)
        wrapped = torch.tensor([-7 if dtype.is_signed else 7, 100, 3], dtype=dtype) * 3
        dist.all_reduce(whole := whole.to(GPU), dist.ReduceOp.AVG)
        same(whole, wrapped.div(2, rounding_mode="trunc"))


def tensors_that_are_not_contiguous(rank: int) -> None:
    whole = values(rank, 6_000_000).to(GPU).view(2000, 3000)
    dist.all_reduce(whole.t())
    same(whole, total(6_000_000).view(2000, 3000))
    every_other = values(rank, 4000).to(GPU)[::2]
    dist.all_reduce(every_other)
    same(every_other, total(4000)[::2])


def many_tensors_as_one(rank: int) -> None:
    group = dist.group.WORLD._threaded
    counts = [1, 0, 77, 2_000_003, 5, 1_000_000] * 3
    tensors = [values(rank, count).to(GPU) for count in counts]
    group.all_reduce(tensors, label="many", scale=0.5).wait()
    for tensor, count in zip(tensors, counts, strict=True):
        same(tensor, total(count) * 0.5)


def gathers_and_scatters(rank: int) -> None:
    for count in (3, 1_000_003, 5_000_000):
        whole = torch.empty(SIZE * count, device=GPU)
        dist.all_gather_into_tensor(whole, values(rank, count).to(GPU))
        same(whole, torch.cat([values(0, count), values(1, count)]))
        part = torch.empty(count, device=GPU)
        dist.reduce_scatter_tensor(part, values(rank, SIZE * count).to(GPU))
        same(part, total(SIZE * count)[rank * count : (rank + 1) * count])
        received = torch.empty(SIZE * count, device=GPU)
        dist.all_to_all_single(received, values(rank, SIZE * count).to(GPU))
        start = rank * count
        same(received, torch.cat([values(other, SIZE * count)[start : start + count] for other in range(SIZE)]))
        tensor = values(rank, count).to(GPU)
        dist.broadcast(tensor, 1)
        same(tensor, values(1, count))


def sends_and_receives(rank: int) -> None:
    group = dist.group.WORLD._threaded
    assert group.size == SIZE
    for count in (1, 100_000, 10_000_000):
        tensor = values(rank, count).to(GPU)
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
            same(tensor, values(0, count) + 1)
        else:
            dist.recv(tensor, 0)
            same(tensor, values(0, count))
            dist.send(tensor + 1, 0)


def calls_come_after_what_the_stream_was_given(rank: int) -> None:
    """Without any synchronisation by the caller, on a stream of its own, with memory that is freed at once."""
    stream = torch.cuda.Stream()
    for _ in range(5):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)  # cycles: some 25 ms
            tensor = torch.full((3_000_000,), float(rank + 1), device=GPU)
            work = dist.all_reduce(tensor, async_op=True)
        assert not work.is_completed()
        work.wait()
        assert bool((tensor == 3.0).all())  # on another stream
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            tensor.fill_(rank)
            received = torch.zeros_like(tensor)
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, tensor, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
            )
        for work in works:
            work.wait()
        assert bool((received == 1 - rank).all())
        del tensor, received


def asynchronous_calls_in_flight(rank: int) -> None:
    tensors = [values(rank, 500_000 + number).to(GPU) for number in range(12)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for number, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
        work.wait()
        same(tensor, total(500_000 + number))


def futures_hold_tensors_of_the_gpu(rank: int) -> None:
    tensor = values(rank, 1_000_000).to(GPU)
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    same(future.wait(), total(1_000_000) * 2)


def wrong_calls_are_refused(rank: int) -> None:
    group = dist.group.WORLD._threaded
    with suppress(UsageError):
        group.all_reduce([torch.ones(4, device=GPU), torch.ones(4)], label="two devices")
        raise AssertionError("tensors of two devices were taken")
    graph = torch.cuda.CUDAGraph()
    tensor = torch.ones(4, device=GPU)
    is_refused = False
    with torch.cuda.graph(graph):
        tensor.mul_(1.0)
        try:
            group.all_reduce(tensor, label="in a graph")
        except UsageError:
            is_refused = True
    assert is_refused
    sums_of_every_size_and_type(rank)  # the group goes on


def pinned_memory_is_used_again(rank: int) -> None:
    tensor = values(rank, LONG).to(GPU)
    dist.all_reduce(tensor)
    before = pool.bytes
    for _ in range(5):
        dist.all_reduce(tensor)
    assert pool.bytes == before
    block = pool.take(1000)
    assert block.is_pinned()


def ddp_trains_as_one_process_does(rank: int) -> None:
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)).to(GPU)
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)).to(GPU)
    model.load_state_dict(reference.state_dict())
    wrapped = DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=1)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-3) for each in (reference, model)]
    data = torch.randn(40, 32, 64, generator=torch.Generator().manual_seed(1)).to(GPU)
    for step in range(20):
        for network, batch, optimizer in (
            (reference, torch.cat([data[2 * step], data[2 * step + 1]]), optimizers[0]),
            (wrapped, data[2 * step + rank], optimizers[1]),
        ):
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        everybody = [torch.empty_like(ours) for _ in range(SIZE)]
        dist.all_gather(everybody, ours.detach())
        assert torch.equal(everybody[0], everybody[1])  # bit for bit


def fsdp2_trains(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(GPU)
    fully_shard(model, mesh=init_device_mesh("cuda", (SIZE,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    data = torch.randn(32, 64, generator=torch.Generator().manual_seed(rank)).to(GPU)
    for _ in range(10):
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


class _Alone(Exchanger):
    """In memory, of one rank: all that NCCL can be tried with on one GPU."""

    rank, size, bytes_sent, idle_seconds = 0, 1, 0, 0.0

    def all_gather(self, operation: Operation, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        outputs[0].copy_(tensor)

    def all_reduce(self, *given: Any) -> None:
        raise NotImplementedError

    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        pass

    def close(self) -> None:
        pass

    reduce_scatter = all_to_all = broadcast = all_reduce


def nccl_carries_a_group_of_one(rank: int) -> None:
    carrier = NcclCarrier(lambda data: [data], CarrierPlace(0, 1, "127.0.0.1"), GPU, lambda: None)
    exchanger = BesideExchanger(carrier, _Alone())
    try:
        tensor = values(rank, 1000).to(GPU)
        exchanger.all_reduce(
            Operation(FrameKind.ALL_REDUCE, 0, "one", torch.float32, 1000, Reduction.SUM, 0.5), [tensor]
        )
        same(tensor, values(rank, 1000) * 0.5)
        output = torch.empty(1000, device=GPU)
        exchanger.all_gather(Operation(FrameKind.ALL_GATHER, 1, "one", torch.float32, 1000), [output], tensor)
        same(output, values(rank, 1000) * 0.5)
        part = Operation(FrameKind.REDUCE_SCATTER, 2, "one", torch.float32, 1000, Reduction.SUM)
        exchanger.reduce_scatter(part, output, [values(rank, 1000).to(GPU)])
        same(output, values(rank, 1000))
        exchanger.all_to_all(Operation(FrameKind.ALL_TO_ALL, 3, "one", torch.float32, 0), [output], [tensor])
        same(output, values(rank, 1000) * 0.5)
        exchanger.broadcast(Operation(FrameKind.BROADCAST, 4, "one", torch.float32, 1000), tensor, 0)
    finally:
        exchanger.close()


CHECKS: tuple[Check, ...] = (
    sums_of_every_size_and_type,
    other_reductions,
    tensors_that_are_not_contiguous,
    many_tensors_as_one,
    gathers_and_scatters,
    sends_and_receives,
    calls_come_after_what_the_stream_was_given,
    asynchronous_calls_in_flight,
    futures_hold_tensors_of_the_gpu,
    wrong_calls_are_refused,
    pinned_memory_is_used_again,
    ddp_trains_as_one_process_does,
    fsdp2_trains,
    nccl_carries_a_group_of_one,
)


def main() -> None:
    rank, store = int(sys.argv[1]), sys.argv[2]
    torch.cuda.set_device(GPU)
    dist.init_process_group("shoal", init_method=f"file://{store}", rank=rank, world_size=SIZE)
    for check in CHECKS:
        try:
            check(rank)
            error = None
        except Exception:
            error = traceback.format_exc()
        sys.stdout.write(json.dumps({"check": check.__name__, "error": error}) + "\n")
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
