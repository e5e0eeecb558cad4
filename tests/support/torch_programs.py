"""What ranks do in tests of the torch backend: each function is called in every rank, in a process group `shoal`."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp
from torch.distributed._functional_collectives import all_gather_single, reduce_scatter_single
from torch.distributed._functional_collectives import all_reduce as functional_all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from shoal.collectives.group import Reduction
from support.bits import bits_of, folded, tensor_of
from support.torch_ranks import Place, store_of


def no_gloo() -> None:
    """From here on nobody can make a gloo group in this process, not even torch itself."""

    def refuse(*_given: object, **_named: object) -> None:
        raise AssertionError("gloo was asked for")

    dist.distributed_c10d.ProcessGroupGloo = refuse
    torch._C._distributed_c10d.ProcessGroupGloo.__init__ = refuse  # type: ignore[method-assign]  nobody may make one


def own(rank: int, *shape: int) -> torch.Tensor:
    return torch.full(shape or (4,), float(rank + 1))


def reductions(rank: int, size: int) -> None:
    everybody = torch.arange(1.0, size + 1)
    expected = {
        ReduceOp.SUM: everybody.sum(),
        ReduceOp.AVG: everybody.mean(),
        ReduceOp.PRODUCT: everybody.prod(),
        ReduceOp.MIN: everybody.min(),
        ReduceOp.MAX: everybody.max(),
        dist._make_nccl_premul_sum(0.5): everybody.sum() / 2,
    }
    for operator, value in expected.items():
        tensor = own(rank)
        dist.all_reduce(tensor, operator)
        torch.testing.assert_close(tensor, value.expand(4))
        output = torch.zeros(2)
        dist.reduce_scatter_single(output, own(rank, 2 * size), operator)
        torch.testing.assert_close(output, value.expand(2))
    for bits, value in ((ReduceOp.BAND, 0), (ReduceOp.BOR, 3), (ReduceOp.BXOR, 1 ^ 2 ^ 3)):
        whole = torch.tensor([rank + 1])
        dist.all_reduce(whole, bits)
        assert whole.item() == value
    truth = torch.tensor([rank == 1, False])
    dist.all_reduce(truth, ReduceOp.MAX)
    assert truth.tolist() == [True, False]


WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def averages_of_whole_numbers(rank: int, size: int) -> None:
    """As NCCL: numbers are added in their own type, which may overflow, and the sum is divided towards zero."""
    for dtype in WHOLE:
        least = torch.iinfo(dtype).min
        numbers = torch.tensor([least, 0, 3 if least == 0 else -3, torch.iinfo(dtype).max, 7], dtype=dtype)
        everybody = [numbers + peer for peer in range(size)]
        total = everybody[0].clone()
        for other in everybody[1:]:
            total += other
        expected = torch.tensor([abs(int(one)) // size * (1 if one > 0 else -1) for one in total], dtype=dtype)
        tensor = everybody[rank].clone()
        dist.all_reduce(tensor, ReduceOp.AVG)
        assert torch.equal(tensor, expected), (dtype, tensor, expected)
        tensor = everybody[rank].clone()
        work = dist.all_reduce(tensor, ReduceOp.AVG, async_op=True)
        assert torch.equal(work.get_future().wait()[0], expected)
        dist.reduce(tensor := everybody[rank].clone(), size - 1, ReduceOp.AVG)
        assert torch.equal(tensor, expected if rank == size - 1 else everybody[rank])
        output = torch.zeros(5, dtype=dtype)
        dist.reduce_scatter(output, [everybody[rank].clone() for _ in range(size)], ReduceOp.AVG)
        assert torch.equal(output, expected)
        dist.reduce_scatter_single(output.zero_(), everybody[rank].repeat(size), ReduceOp.AVG)
        assert torch.equal(output, expected)
    one, two = torch.tensor([rank]), torch.tensor([[-rank, 9]])
    dist.all_reduce_coalesced([one, two], ReduceOp.AVG)
    assert (one.tolist(), two.tolist()) == ([(size - 1) // 2], [[-((size - 1) // 2), 9]])
    sparse = torch.sparse_coo_tensor([[rank, 0]], [size, 1], (size,))
    dist.all_reduce(sparse, ReduceOp.AVG)
    assert sparse.to_dense().tolist() == [2] + [1] * (size - 1)
    turned = torch.tensor([1 + 2j]) * (rank + 1)
    dist.all_reduce(turned, ReduceOp.AVG)
    torch.testing.assert_close(turned, torch.tensor([1 + 2j]) * (size + 1) / 2)


def as_lightning_does(rank: int, size: int) -> float:
    """What its DDP strategy does to agree on a counter: a barrier, then the mean of one int64 number.

    It asks every backend but gloo for the mean.
    """
    counter = torch.tensor(10 + rank)
    assert counter.dtype is torch.int64 and dist.get_backend() != "gloo"
    dist.barrier()
    dist.all_reduce(counter, op=ReduceOp.AVG, group=dist.group.WORLD, async_op=False)
    return counter.item()


def bits(rank: int, size: int) -> None:
    """Every rank holds the values combined in the order of the ranks, bit for bit."""
    operators = {ReduceOp.SUM: Reduction.SUM, ReduceOp.MAX: Reduction.MAX, ReduceOp.MIN: Reduction.MIN}
    for dtype in (torch.float32, torch.bfloat16):
        everybody = [tensor_of(dtype, 1000, peer) for peer in range(size)]
        for operator, reduction in operators.items():
            expected = bits_of(folded(dtype, reduction, everybody))
            for elements in range(1001):
                tensor = everybody[rank][:elements].clone()
                if elements % 2:
                    dist.all_reduce(tensor, operator)
                else:
                    dist.all_reduce(tensor, operator, async_op=True).wait()
                assert (bits_of(tensor) == expected[:elements]).all(), (dtype, operator, elements)


def collectives(rank: int, size: int) -> None:
    ranks = range(size)
    tensor = own(rank)
    dist.broadcast(tensor, 1)
    assert torch.equal(tensor, own(1))
    tensor = own(rank)
    dist.reduce(tensor, 2)
    assert torch.equal(tensor, torch.full((4,), 6.0) if rank == 2 else own(rank))
    gathered = [torch.zeros(4) for _ in ranks]
    dist.all_gather(gathered, own(rank))
    assert all(torch.equal(gathered[peer], own(peer)) for peer in ranks)
    uneven = [torch.zeros(peer + 1) for peer in ranks]
    dist.all_gather(uneven, own(rank, rank + 1))
    assert all(torch.equal(uneven[peer], own(peer, peer + 1)) for peer in ranks)
    output = torch.zeros(size, 4)
    dist.all_gather_single(output, own(rank))
    assert torch.equal(output, torch.stack([own(peer) for peer in ranks]))
    output = torch.zeros(2)
    dist.reduce_scatter(output, [own(rank, 2) * (peer + 1) for peer in ranks])
    assert torch.equal(output, torch.full((2,), 6.0 * (rank + 1)))
    collected = [torch.zeros(4) for _ in ranks] if rank == 1 else None
    dist.gather(own(rank), collected, 1)
    assert collected is None or all(torch.equal(collected[peer], own(peer)) for peer in ranks)
    tensor = torch.zeros(4)
    dist.scatter(tensor, [own(peer) for peer in ranks] if rank == 1 else None, 1)
    assert torch.equal(tensor, own(rank))
    traded = [torch.zeros(rank + 1) for _ in ranks]
    dist.all_to_all(traded, [own(rank, peer + 1) for peer in ranks])
    assert all(torch.equal(traded[peer], own(peer, rank + 1)) for peer in ranks)
    sizes = [peer + 1 for peer in ranks]
    output = torch.zeros(size * (rank + 1))
    dist.all_to_all_single(output, own(rank, sum(sizes)), [rank + 1] * size, sizes)
    assert torch.equal(output, torch.cat([own(peer, rank + 1) for peer in ranks]))
    dist.barrier()
    dist.monitored_barrier()


def asynchronous(rank: int, size: int) -> None:
    total = torch.full((4,), 6.0)
    tensors = [own(rank) for _ in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        assert work.wait() and work.is_completed() and work.is_success()
    assert all(torch.equal(tensor, total) for tensor in tensors)
    future = dist.all_reduce(own(rank), async_op=True).get_future()
    assert torch.equal(future.then(lambda done: done.value()[0] * 2).wait(), total * 2)

    def again(done: torch.futures.Future[Any]) -> torch.Tensor:
        """As some of DDP's hooks do: another collective, waited for, in the callback of the first."""
        result: torch.Tensor = dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]
        return result

    chained = dist.all_reduce(own(rank), async_op=True).get_future().then(again)
    assert torch.equal(chained.wait(), total * size)
    output = torch.zeros(2 * size)
    dist.all_gather_single(output, own(rank, 2), async_op=True).wait()
    assert torch.equal(output, torch.cat([own(peer, 2) for peer in range(size)]))
    with dist._coalescing_manager(async_ops=True) as together:
        for tensor in tensors:
            dist.all_reduce(tensor)
    together.wait()
    assert all(torch.equal(tensor, total * size) for tensor in tensors)


def point_to_point(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    for elements in (1, 5000, 600_000):
        sent, received = own(rank, elements), torch.zeros(elements)
        operations = [dist.P2POp(dist.irecv, received, left), dist.P2POp(dist.isend, sent, right)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert torch.equal(received, own(left, elements))
    if rank == 0:
        tensor = torch.zeros(4)
        sources = {dist.recv(tensor, tag=7) for _ in range(size - 1)}
        assert sources == set(range(1, size))
        first, second = torch.zeros(2), torch.zeros(2)
        dist.recv(second, 1, tag=2)
        dist.recv(first, 1, tag=1)
        assert (first[0].item(), second[0].item()) == (1.0, 2.0)
    else:
        dist.send(own(rank), 0, tag=7)
    if rank == 1:
        dist.send(torch.ones(2), 0, tag=1)
        dist.send(torch.ones(2) * 2, 0, tag=2)


def groups_and_objects(rank: int, size: int) -> None:
    pair, alone = dist.new_group([0, 2]), [dist.new_group([peer]) for peer in range(size)]
    tensor = own(rank)
    if rank in (0, 2):
        dist.all_reduce(tensor, group=pair)
        assert torch.equal(tensor, own(0) + own(2))
        dist.broadcast(tensor, 2, group=pair)
    dist.all_reduce(tensor, group=alone[rank])
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank * 1000})
    assert [one["rank"] for one in found if one is not None] == list(range(size))
    given = [("from", rank)]
    dist.broadcast_object_list(given, 1)
    assert given == [("from", 1)]
    handed: list[Any] = [None]
    dist.scatter_object_list(handed, list(range(10, 10 + size)) if rank == 0 else None, 0)
    assert handed == [10 + rank]
    sparse = torch.sparse_coo_tensor([[rank, 0]], [1.0, 1.0], (size,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [size + 1.0] + [1.0] * (size - 1)


def functional_and_training(rank: int, size: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    assert torch.equal(functional_all_reduce(own(rank), "sum", group), torch.full((4,), 6.0))
    assert all_gather_single(own(rank), 0, group).shape == (4 * size,)
    assert torch.equal(reduce_scatter_single(own(rank, size), "sum", 0, group), torch.full((1,), 6.0))
    mesh = init_device_mesh("cpu", (size,))
    assert mesh.get_group().name() == "shoal"
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    model(torch.randn(5, 4)).sum().backward()
    for parameter in model.parameters():
        copies = [torch.zeros_like(parameter.grad) for _ in range(size)]
        dist.all_gather(copies, parameter.grad)
        assert all(torch.equal(copy, parameter.grad) for copy in copies)


def everything(rank: int, size: int) -> str:
    no_gloo()
    for part in (reductions, collectives, asynchronous, point_to_point, groups_and_objects, functional_and_training):
        part(rank, size)
    return dist.get_backend()


def odd_tensors(rank: int, size: int) -> None:
    everybody = [own(peer, 4, 6) for peer in range(size)]
    turned = own(rank, 6, 4).t()
    dist.all_reduce(turned)
    assert torch.equal(turned, sum(everybody))
    column = torch.zeros(4, 6)
    dist.broadcast(column[:, 2], 0) if rank else dist.broadcast(own(0, 4), 0)
    assert torch.equal(column[:, 2], torch.ones(4) if rank else torch.zeros(4))
    output = torch.zeros(6, 4 * size).t()
    dist.all_gather_single(output, own(rank, 4, 6))
    assert torch.equal(output, torch.cat(everybody))
    nothing = torch.zeros(0, 3)
    dist.all_reduce(nothing)
    dist.all_gather_single(torch.zeros(0), torch.zeros(0))
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.complex64):
        tensor = torch.ones(5).to(dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((5,), size).to(dtype))
    weights = own(rank).requires_grad_()
    doubled = weights * 2
    dist.all_reduce(doubled.detach())
    doubled.sum().backward()  # what was exchanged is not taken for a change of the graph


def what_the_store_saw(place: Place, token_file: str) -> tuple[list[bytes], str, float]:
    """A group whose ranks are on two machines: everything that this rank put into the store, and the group's token."""
    if token_file:
        os.environ["SHOAL_TOKEN_FILE"] = token_file
    seen: list[bytes] = []
    original = dist.Store.set

    def seeing(store: dist.Store, key: str, value: str | bytes) -> None:
        seen.append(key.encode() + (value if isinstance(value, bytes) else value.encode()))
        original(store, key, value)  # type: ignore[arg-type]  # torch's stub knows text only

    dist.Store.set = seeing  # type: ignore[method-assign]  # whatever writes into the store is seen
    dist.init_process_group("shoal", store=store_of(place), rank=place.rank, world_size=place.size)
    group: Any = dist.group.WORLD
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    token = group._vigil._listener.token
    dist.destroy_process_group()
    return seen, token, tensor.item()


def try_to_form(place: Place, token_files: list[str]) -> str:
    """Each rank with a token's file of its own, or none."""
    if token_files[place.rank]:
        os.environ["SHOAL_TOKEN_FILE"] = token_files[place.rank]
    limit = timedelta(seconds=2)
    try:
        dist.init_process_group("shoal", store=store_of(place), rank=place.rank, world_size=place.size, timeout=limit)
    except dist.DistError as error:
        return str(error)
    return ""
