"""Models that something else exchanges the gradients of are refused, whether wrapped before or after `run.model`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed, nn

import shoal
from shoal.errors import UsageError
from shoal.training import texts
from shoal.training.mistakes.wrappers import find_wrapper, wrapped_afterwards
from support.training import train_in_threads


@pytest.fixture
def process_group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_a_wrapper_is_found_wherever_it_is_in_the_model() -> None:
    wrapped = nn.DataParallel(nn.Linear(2, 2))
    assert find_wrapper(wrapped) == ("DataParallel", "")
    assert find_wrapper(nn.Sequential(nn.ReLU(), nn.Sequential(wrapped))) == ("DataParallel", "1.0")
    assert find_wrapper(nn.Sequential(nn.ReLU(), nn.Linear(2, 2))) is None


def test_a_class_of_the_users_own_may_have_such_a_name() -> None:
    class DataParallel(nn.Module):
        pass

    assert find_wrapper(DataParallel()) is None


def test_run_model_names_the_wrapper_and_where_it_is() -> None:
    def train(run: shoal.Run) -> None:
        run.model(nn.Sequential(nn.DataParallel(nn.Linear(2, 2))))

    with pytest.raises(UsageError) as raised:
        train_in_threads(1, train)
    assert str(raised.value) == texts.wrapped_model("DataParallel", "0")


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:FSDP is switching to use")  # there is one process
def test_models_wrapped_before_and_after() -> None:
    plain, other = nn.Linear(2, 2), nn.Linear(2, 2)
    assert wrapped_afterwards({"model 1": plain, "model 2": other}) is None
    wrapping = nn.parallel.DistributedDataParallel(other)
    assert find_wrapper(wrapping) == ("DistributedDataParallel", "")
    assert wrapped_afterwards({"model 1": plain, "model 2": other}) == ("model 2", "DistributedDataParallel")

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    older = nn.Sequential(FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu")))
    assert find_wrapper(older) == ("FullyShardedDataParallel", "0")
    assert wrapped_afterwards({"model 1": older}) == ("model 1", "FullyShardedDataParallel")

    sharded = fully_shard(nn.Sequential(nn.Linear(2, 2)), mesh=init_device_mesh("cpu", (1,)))
    assert isinstance(sharded, torch.nn.Module)
    assert find_wrapper(sharded) == ("fully_shard", "")
    assert wrapped_afterwards({"model 1": sharded}) == ("model 1", "fully_shard")
