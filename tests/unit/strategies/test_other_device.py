"""Models on a device that is not the CPU: their gradients reach servers, values come back, and few calls wait."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shoal.errors import UsageError
from shoal.parameters.client.parameter_client import ClientConfig, EnrolTerms, ParameterClient
from shoal.strategies import texts
from shoal.strategies.parameter_server.gradient_outbox import GradientOutbox, Noise
from shoal.strategies.parameter_server.host_memory import in_host_memory, numbers, room_for
from shoal.strategies.parameter_server.parameter_inbox import ParameterInbox
from shoal.strategies.parameter_server.parameter_table import ServedParameter, entries_of, local_states, table_of
from shoal.strategies.strategy import Iteration
from shoal.wire.ledger_entries import Committed
from shoal.wire.tables import PushTerms
from support.other_device import Count, There, entered, moved
from support.stand_in_servers import JOB, TOKEN, StandIns

RATE = 0.5
TERMS = PushTerms(groups=(({"lr": RATE},),))


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Conv1d(1, 4, 3), nn.Linear(38, 2))


def backward(model: nn.Module, seed: int) -> None:
    data = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))
    given = There(data) if isinstance(model[0].weight, There) else data
    F.mse_loss(model(given.unsqueeze(1)), torch.zeros_like(model(given.unsqueeze(1)))).backward()


def iteration(**changes: Any) -> Iteration:
    return Iteration(**{"step": 7, "weight": 4.0, "earlier_weight": 0.0, "step_samples": 8, **changes})


class Pushes:
    """What is put into a push, in memory of the host."""

    def __init__(self) -> None:
        self.opened = 0
        self.values: dict[str, torch.Tensor] = {}

    def open(self) -> Any:
        self.opened += 1
        return self

    def put(self, name: str, gradient: torch.Tensor, scale: float = 1.0) -> None:
        assert gradient.is_cpu
        self.values[name] = gradient.clone() * scale


def entries_for(model: nn.Module) -> tuple[ServedParameter, ...]:
    return entries_of({"m": model}, [torch.optim.SGD(model.parameters(), lr=RATE)])


@pytest.fixture(autouse=True)
def on_the_device() -> Iterator[None]:
    with entered():
        yield


def sent(model: nn.Module, noise: Noise | None = None, *, accumulate: int = 1) -> tuple[dict[str, torch.Tensor], float]:
    """What has left after one step, and its norm."""
    pushes = Pushes()
    outbox = GradientOutbox(entries_for(model), pushes.open, noise)
    for batch in range(accumulate):
        outbox.begin(iteration(is_first=batch == 0, is_last=batch == accumulate - 1, earlier_weight=4.0 * batch))
        backward(model, batch)
        if batch < accumulate - 1:
            outbox.end()
    outbox.take()
    norm = outbox.norm()
    outbox.detach()
    return pushes.values, norm


@pytest.mark.parametrize("noise", [None, Noise(0.5, seed=3, worker=1)], ids=["plain", "noisy"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_what_leaves_is_what_leaves_from_the_cpu(noise: Noise | None, accumulate: int) -> None:
    here, norm_here = sent(model_of(), noise, accumulate=accumulate)
    there, norm_there = sent(moved(model_of()), noise, accumulate=accumulate)
    assert here.keys() == there.keys()
    assert all(torch.equal(here[name], there[name]) for name in here)
    assert norm_there == pytest.approx(norm_here)


def test_a_step_waits_once_per_gradient_and_once_to_see_that_none_was_changed() -> None:
    model, pushes = moved(model_of()), Pushes()
    outbox = GradientOutbox(entries_for(model), pushes.open, None)
    outbox.begin(iteration())
    Count.waits = 0
    backward(model, 0)
    gradients = len(list(model.parameters()))
    assert Count.waits == gradients
    outbox.take()
    assert Count.waits == gradients + 1
    outbox.norm()
    assert Count.waits == gradients + 2
    outbox.detach()


def test_a_change_that_torch_does_not_count_is_noticed_there_too() -> None:
    model, pushes = moved(model_of()), Pushes()
    outbox = GradientOutbox(entries_for(model), pushes.open, None)
    outbox.begin(iteration())
    backward(model, 0)
    model[3].bias.grad.inner.mul_(0.5)  # as the kernels of gradient scalers do
    with pytest.raises(UsageError, match=re.escape(texts.gradient_changed("m/3.bias"))):
        outbox.take()
    outbox.detach()


def test_parameters_without_a_gradient_leave_as_zeros_without_a_wait() -> None:
    model, pushes = moved(model_of()), Pushes()
    outbox = GradientOutbox(entries_for(model), pushes.open, None)
    outbox.begin(iteration())
    Count.waits = 0
    outbox.take(is_needed=True)
    assert Count.waits == 0
    assert all(not value.any() for value in pushes.values.values()) and len(pushes.values) == 6
    outbox.detach()


def test_gradients_that_come_in_two_threads_at_once_go_into_one_push() -> None:
    """autograd has a thread for each device, and a model may be on two of them."""
    model, opening = model_of(), threading.Event()

    class Slow(Pushes):
        def open(self) -> Any:
            opening.set()
            other.join(0.2)  # long enough for the other thread to find no push, if it may look
            return super().open()

    pushes = Slow()
    outbox = GradientOutbox(entries_for(model), pushes.open, None)
    first, second = list(model.parameters())[:2]
    other = threading.Thread(target=lambda: opening.wait(10) and outbox._put(1, outbox._entries[1], second, scale=1.0))
    other.start()
    outbox._put(0, outbox._entries[0], first, scale=1.0)
    other.join()
    outbox.detach()
    assert pushes.opened == 1
    assert len(pushes.values) == 2


class Trained:
    """A model whose parameters are on two servers, by way of a real client."""

    def __init__(self, model: nn.Module, client: ParameterClient, *, lazily: bool) -> None:
        self.model, self._client = model, client
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        entries = entries_of({"m": model}, [optimizer])
        client.define(table_of(entries, [optimizer]))
        client.enrol(EnrolTerms(generation=1, workers=(0,), mode="asynchronous", scaling="none"))
        states = local_states(entries, [optimizer])
        client.assign({entry.name: entry.parameter.detach() for entry in entries}, states, updates=0)
        self.outbox = GradientOutbox(entries, client.begin_push, None)
        self.inbox = ParameterInbox(entries, [model], self._failed, lazily=lazily)

    def _failed(self, failure: Exception) -> None:
        raise failure

    def step(self, seed: int) -> None:
        self.outbox.begin(iteration(weight=8.0))
        backward(self.model, seed)
        push = self.outbox.take()
        assert push is not None
        answer = self._client.commit(push, TERMS)
        assert isinstance(answer, Committed)
        self.outbox.end()
        self.model.zero_grad()
        self.inbox.expect(self._client.pull(at_least=answer.number, order=self.inbox.order))

    def close(self) -> None:
        self.outbox.detach()
        self.inbox.detach()


@pytest.mark.parametrize("shares_memory", [True, False], ids=["memory", "network"])
@pytest.mark.parametrize("lazily", [True, False])
def test_it_learns_what_a_model_in_memory_learns_from_torchs_own_optimizer(shares_memory: bool, lazily: bool) -> None:
    servers, alone = StandIns(2), model_of()
    config = ClientConfig(keeper=servers.keeper, key=TOKEN, job=JOB, worker=0, shares_memory=shares_memory)
    client = ParameterClient(config)
    try:
        trained = Trained(moved(model_of()), client, lazily=lazily)
        optimizer = torch.optim.SGD(alone.parameters(), lr=RATE)
        for seed in range(4):
            trained.step(seed)
            backward(alone, seed)
            optimizer.step()
            optimizer.zero_grad()
        trained.inbox.settle()
        for there, here in zip(trained.model.parameters(), alone.parameters(), strict=True):
            assert isinstance(there.data, There)
            torch.testing.assert_close(there.data.inner, here.data)
        trained.close()
    finally:
        client.close()
        servers.close()


def test_values_go_to_the_device_in_one_copy_each_when_they_are_whole() -> None:
    model = moved(model_of())
    entries = entries_for(model)
    seen: list[bool] = []

    class Pull:
        updates = 5

        def wait(self, name: str, into: torch.Tensor) -> None:
            """As where memory changes under a copy: first half of it, then all."""
            into.view(-1)[: into.numel() // 2] = 9.0
            seen.append(bool((dict(model.named_parameters())[name[2:]].data.inner == 9.0).any()))
            into.fill_(3.0)

    inbox = ParameterInbox(entries, [model], lambda _: None, lazily=False)
    pull: Any = Pull()
    inbox.expect(pull)
    inbox.settle()
    inbox.detach()
    assert seen == [False] * len(entries)
    assert all((parameter.data.inner == 3.0).all() for parameter in model.parameters())
    assert inbox.updates == 5


def test_an_optimizers_own_state_is_taken_to_the_host() -> None:
    model = moved(model_of())
    optimizer = torch.optim.AdamW(model.parameters())
    backward(model, 0)
    optimizer.step()
    states = local_states(entries_of({"m": model}, [optimizer]), [optimizer])
    moments = states["m/0.weight"]["exp_avg"], states["m/0.weight"]["exp_avg_sq"]
    assert all(isinstance(moment, torch.Tensor) and moment.is_cpu and moment.any() for moment in moments)


@pytest.mark.parametrize("shape", [(), (0, 4), (3, 5)])
def test_host_memory_holds_what_a_tensor_holds(shape: tuple[int, ...]) -> None:
    values = torch.randn(shape, dtype=torch.bfloat16)
    assert in_host_memory(values) is values
    assert torch.equal(in_host_memory(There(values)), values)
    room = room_for(There(values.t()) if len(shape) == 2 else There(values))
    assert room.is_cpu and room.is_contiguous() and room.dtype == torch.bfloat16


def test_numbers_keep_their_order_whatever_device_and_kind_they_are_of() -> None:
    scalars = [torch.tensor(1.5), There(torch.tensor(2.5)), 3.5, There(torch.tensor(4.5, dtype=torch.float64))]
    assert numbers([*scalars, There(torch.tensor(5.5))]) == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert numbers([]) == []
