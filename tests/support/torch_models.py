"""Ways to train in torch, as programs for ranks: each compares what it computes with one process doing it all."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from support.torch_programs import no_gloo

STEPS = 3
BATCH = 4  # per rank


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def batches(size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(size * BATCH, 8, generator=generator) for _ in range(STEPS)]


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output, torch.ones_like(output))


def alone(size: int) -> nn.Sequential:
    """The model after training on everybody's batches."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(size):
        optimizer.zero_grad()
        loss_of(model(batch)).backward()
        optimizer.step()
    return model


def train(rank: int, size: int, model: nn.Module, optimizer: Any = None) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(size):
        optimizer.zero_grad()
        loss_of(model(batch[rank * BATCH : (rank + 1) * BATCH])).backward()
        optimizer.step()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_same(model: nn.Module, expected: nn.Module) -> None:
    for found, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(whole(found.detach()), wanted.detach())


def ddp(rank: int, size: int) -> None:
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}):
        model = DistributedDataParallel(make_model(), **options)  # type: ignore[arg-type]  options of several types
        train(rank, size, model)
        assert_same(model, alone(size))
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.0001)
    with model.no_sync():
        loss_of(model(batches(size)[0])).backward()
    model.zero_grad()
    train(rank, size, model)
    assert_same(model, alone(size))


def ddp_hooks(rank: int, size: int) -> None:
    model = DistributedDataParallel(make_model())
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    train(rank, size, model)
    assert_same(model, alone(size))
    for hook, state in (
        (default_hooks.fp16_compress_hook, None),
        (powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)),
    ):
        model = DistributedDataParallel(make_model())
        model.register_comm_hook(state, hook)
        train(rank, size, model)
        everybody: list[Any] = [None] * size
        dist.all_gather_object(everybody, [parameter.tolist() for parameter in model.parameters()])
        assert everybody == [everybody[0]] * size


def ddp_uneven(rank: int, size: int) -> None:
    """Ranks with different numbers of batches, buffers, sparse gradients, a sharded optimizer."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    with Join([model]):
        for _ in range(3 + rank):
            model(torch.randn(4, 8)).sum().backward()
    embedding = DistributedDataParallel(nn.EmbeddingBag(10, 3, sparse=True))
    embedding(torch.tensor([[rank, 9]])).sum().backward()
    gradient = embedding.module.weight.grad.to_dense()
    assert torch.equal(gradient.sum(1), torch.tensor([1.5 / size] * size + [0.0] * (9 - size) + [1.5]))
    sharded = DistributedDataParallel(make_model())
    train(rank, size, sharded, ZeroRedundancyOptimizer(sharded.parameters(), torch.optim.SGD, lr=0.1))
    assert_same(sharded, alone(size))


def fsdp(rank: int, size: int) -> None:
    model = make_model()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    train(rank, size, model)
    assert_same(model, alone(size))
    older = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"))
    train(rank, size, older)
    with FullyShardedDataParallel.summon_full_params(older):
        assert_same(older, alone(size))


def hsdp(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    model = make_model()
    fully_shard(model, mesh=mesh)
    train(rank, size, model)
    assert_same(model, alone(size))


def tensor_parallel(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("data", "tensor"))
    model = make_model()
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    half = mesh["data"].get_local_rank()
    for batch in batches(size):
        optimizer.zero_grad()
        loss_of(model(batch.chunk(2)[half])).backward()
        optimizer.step()
    assert_same(model, alone(size))


def dtensors(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(3)
    left, right = torch.randn(size * 2 + 1, 6), torch.randn(6, size * 3)
    by_rows = distribute_tensor(left, mesh, [Shard(0)])
    by_columns = distribute_tensor(right, mesh, [Shard(1)])
    product = torch.matmul(by_rows.redistribute(mesh, [Replicate()]), by_columns)
    torch.testing.assert_close(product.full_tensor(), left @ right)
    assert torch.equal(by_rows.redistribute(mesh, [Shard(1)]).full_tensor(), left)
    torch.testing.assert_close(by_rows.sum().full_tensor(), left.sum())


def pipeline(rank: int, size: int) -> None:
    stages = [nn.Linear(8, 8) for _ in range(size)]
    torch.manual_seed(4)
    for stage in stages:
        nn.init.normal_(stage.weight, std=0.3)
    given = torch.randn(8, 8)
    expected = copy.deepcopy(nn.Sequential(*stages))
    loss_of(expected(given)).backward()
    for kind in (ScheduleGPipe, Schedule1F1B):
        own = copy.deepcopy(stages[rank])
        stage = PipelineStage(own, rank, size, torch.device("cpu"))
        schedule = kind(stage, 4, loss_fn=F.mse_loss)
        if rank == 0:
            schedule.step(given)
        else:
            schedule.step(**({"target": torch.ones(8, 8)} if rank == size - 1 else {}))
        torch.testing.assert_close(own.weight.grad, expected[rank].weight.grad)


def saving(rank: int, size: int) -> None:
    """A sharded model's checkpoint, read back into another one."""
    with tempfile.TemporaryDirectory() as own:  # that of rank 0 is used
        place = [own]
        dist.broadcast_object_list(place, 0)
        model = make_model()
        fully_shard(model)
        train(rank, size, model)
        checkpoint.save(get_model_state_dict(model), checkpoint_id=place[0])
        other = make_model()
        fully_shard(other)
        state = get_model_state_dict(other)
        checkpoint.load(state, checkpoint_id=place[0])
        set_model_state_dict(other, state)
        assert_same(other, alone(size))
        pending = checkpoint.async_save(get_model_state_dict(other), checkpoint_id=Path(place[0]) / "later")
        pending.result()  # type: ignore[union-attr]  a future, as it is called here
        dist.barrier()


WAYS: dict[str, Callable[[int, int], None]] = {
    way.__name__: way for way in (ddp, ddp_hooks, ddp_uneven, fsdp, hsdp, tensor_parallel, dtensors, pipeline, saving)
}


def run(rank: int, size: int, way: str) -> None:
    no_gloo()
    WAYS[way](rank, size)
