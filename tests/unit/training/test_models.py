"""Models and optimizers as people write them give on many workers what they give on one."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.errors import ModelsDiffer, WorkersDisagree
from support.training import Hub, train_in_threads

START = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def data(samples: int = 43) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x[:, :2].sin())


Train = Callable[[shoal.Run, int], dict[str, torch.Tensor]]


def compare(train: Train, *, size: int = 3, batch: int = 4, tolerance: float = 1e-9, **options: Any) -> None:
    """The same script on one worker with the whole batch and on `size` workers."""
    (one,) = train_in_threads(1, lambda run: train(run, batch * size), **options)
    many = train_in_threads(size, lambda run: train(run, batch), **options)
    for state in many:
        for name, tensor in one.items():
            assert (tensor.double() - state[name].double()).abs().max().item() <= tolerance, name
            assert torch.equal(state[name], many[0][name]), f"{name} differs between workers"


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_of_torch(name: str) -> None:
    def train(run: shoal.Run, batch: int) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(OPTIMIZERS[name](model.parameters()))
        for x, y in run.batches(data(), batch_size=batch, epochs=3):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return copy.deepcopy(model.state_dict())

    # Optimizers that divide by a gradient's size turn rounding into larger differences.
    compare(train, tolerance=1e-7)


def test_an_optimizer_with_a_closure_sees_one_loss() -> None:
    def train(run: shoal.Run, batch: int) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe"))
        for x, y in run.batches(data(), batch_size=batch, epochs=2):

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
        return copy.deepcopy(model.state_dict())

    compare(train, tolerance=1e-6)


def test_sparse_gradients_stay_sparse() -> None:
    table = nn.Embedding(20, 3, sparse=True).double()
    rows = TensorDataset(torch.arange(40) % 13, torch.linspace(0, 1, 40, dtype=torch.float64))

    def train(run: shoal.Run, batch: int) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(table))
        optimizer = run.optimizer(torch.optim.SparseAdam(list(model.parameters()), lr=0.01))
        for x, y in run.batches(rows, batch_size=batch, epochs=3):
            F.mse_loss(model(x).sum(1), y).backward()
            assert model.weight.grad is not None and model.weight.grad.is_sparse
            optimizer.step()
            optimizer.zero_grad()
        return copy.deepcopy(model.state_dict())

    compare(train)


class Odd(nn.Module):
    """Tied weights, a frozen layer, a layer that is never used, one used by some inputs only, an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.tied = nn.Linear(5, 5)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.unused = nn.Linear(5, 5)
        self.sometimes = nn.Linear(5, 2)
        self.last = nn.Linear(5, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.rand(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.frozen(self.tied(self.first(x).tanh()).tanh())
        result: torch.Tensor = self.last(hidden)
        picked = x[:, 0] > 0.8
        return result + self.sometimes(hidden) * picked[:, None] if bool(picked.any()) else result


ODD = Odd().double()


def test_tied_frozen_unused_and_sometimes_used_parameters() -> None:
    def train(run: shoal.Run, batch: int) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(ODD))
        groups = [{"params": [model.first.weight, model.first.bias], "lr": 0.1}, {"params": model.last.parameters()}]
        rest = [p for n, p in model.named_parameters() if n.split(".")[0] in ("tied", "unused", "sometimes", "frozen")]
        optimizer = run.optimizer(torch.optim.SGD([*groups, {"params": rest}], lr=0.05, weight_decay=0.1))
        for x, y in run.batches(data(), batch_size=batch, epochs=3):
            F.mse_loss(model(x), y).backward()
            assert model.unused.weight.grad is None, "a parameter that nobody used has no gradient, as on one worker"
            optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(model.table, ODD.table), "a constant buffer is not touched"
        return copy.deepcopy(model.state_dict())

    compare(train)


def test_gradients_that_are_kept_add_up() -> None:
    """Two backward passes per step, zero_grad(set_to_none=False), inspection and clipping in between."""

    def train(run: shoal.Run, batch: int) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05), clip_norm=0.7)
        for x, y in run.batches(data(), batch_size=batch, epochs=2):
            out = model(x)
            F.mse_loss(out[:, 0], y[:, 0]).backward(retain_graph=True)
            half = model[0].weight.grad.clone()
            F.mse_loss(out[:, 1], y[:, 1]).backward()
            assert not torch.equal(half, model[0].weight.grad)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return copy.deepcopy(model.state_dict())

    compare(train)


def test_separate_backward_passes_for_parts_of_a_model() -> None:
    def train(run: shoal.Run, batch: int) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(nn.ModuleDict({"a": START, "b": copy.deepcopy(START)})))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, y in run.batches(data(), batch_size=batch, epochs=2):
            F.mse_loss(model["a"](x), y).backward()
            F.mse_loss(model["b"](x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return copy.deepcopy(model.state_dict())

    compare(train)


def test_gradients_asked_for_by_autograd_grad_are_not_exchanged() -> None:
    def train(run: shoal.Run, batch: int) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, y in run.batches(data(), batch_size=batch):
            x.requires_grad_(True)
            loss = F.mse_loss(model(x), y)
            (by_input,) = torch.autograd.grad(loss, x, retain_graph=True)
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            assert by_input.shape == x.shape and model[0].weight.grad is None
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return copy.deepcopy(model.state_dict())

    compare(train)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def train(run: shoal.Run, batch: int) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, y in run.batches(data(), batch_size=batch):
            x.requires_grad_(True)
            hidden = checkpoint(model[:2], x, use_reentrant=reentrant)
            F.mse_loss(model[2](hidden), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return copy.deepcopy(model.state_dict())

    compare(train)


def test_layers_that_thaw_during_training() -> None:
    def train(run: shoal.Run, batch: int) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(START))
        model[0].requires_grad_(False)
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for epoch in run.epochs(2):
            model[0].requires_grad_(epoch.number == 1)
            for x, y in epoch.batches(data(), batch_size=batch):
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        return copy.deepcopy(model.state_dict())

    compare(train)


def test_layers_that_thaw_between_the_batches_of_a_step_keep_what_the_first_of_them_brought() -> None:
    """As plain torch does it, from the same batches, each with half of the weight."""

    def train(run: shoal.Run) -> None:
        plain = copy.deepcopy(START)
        model = run.model(copy.deepcopy(START))
        model[0].requires_grad_(False)
        plain[0].requires_grad_(False)
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        own = torch.optim.SGD(plain.parameters(), lr=0.05)
        for number, (x, y) in enumerate(run.batches(data(), batch_size=4, accumulate=2, steps=2)):
            F.mse_loss(model(x), y).backward()
            (F.mse_loss(plain(x), y) / 2).backward()
            for each in (model, plain):
                each[0].requires_grad_(number > 1)  # from the second of the two batches of the second step on
            optimizer.step()
            optimizer.zero_grad()
            if number % 2:
                own.step()
                own.zero_grad()
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, plain.state_dict()[name])

    train_in_threads(1, train)


def test_a_convolution_in_channels_last_layout() -> None:
    net = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).double().to(memory_format=torch.channels_last)
    )
    images = torch.randn(21, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    dataset = TensorDataset(images, images.mean((2, 3))[:, :2])

    def train(run: shoal.Run, batch: int) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(net))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, y in run.batches(dataset, batch_size=batch, epochs=2):
            F.mse_loss(model(x.contiguous(memory_format=torch.channels_last)), y).backward()
            assert model[0].weight.grad.stride() == model[0].weight.stride()
            optimizer.step()
            optimizer.zero_grad()
        return copy.deepcopy(model.state_dict())

    compare(train)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_with_a_gradient_scaler(dtype: torch.dtype) -> None:
    def train(run: shoal.Run) -> tuple[list[float], dict[str, torch.Tensor]]:
        model = run.model(copy.deepcopy(START).float())
        optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=0.02))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        run.keep(scaler=scaler)
        losses = []
        for x, y in run.batches(data(), batch_size=4, epochs=15):
            with torch.autocast("cpu", dtype=dtype):
                loss = F.mse_loss(model(x.float()), y.float())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(run.mean(loss.item()))
        return losses, copy.deepcopy(model.state_dict())

    results = train_in_threads(2, train)
    losses, state = results[0]
    assert losses[-1] < losses[0] / 3
    assert all(torch.equal(state[name], results[1][1][name]) for name in state)


def test_models_that_differ_are_named_with_the_first_difference() -> None:
    def train(run: shoal.Run) -> None:
        run.model(nn.Sequential(nn.Linear(5, 8 if run.rank < 2 else 9), nn.Linear(8, 2)))

    with pytest.raises(
        ModelsDiffer, match=r"worker 0 has parameter '0.weight' \[8, 5\] float32 where worker 2 has .*\[9, 5\]"
    ):
        train_in_threads(3, train)


def test_an_update_that_one_worker_skips_is_an_error() -> None:
    def train(run: shoal.Run) -> None:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for number, (x, y) in enumerate(run.batches(data(), batch_size=4)):
            F.mse_loss(model(x), y).backward()
            if number != 2 or run.rank != 1:
                optimizer.step()

    with pytest.raises(WorkersDisagree, match=r"every worker must call optimizer\.step"):
        train_in_threads(2, train)


def test_first_bytes_leave_before_the_last_gradient_exists() -> None:
    """The last gradient to come is that of the first layer; by then the group has sent later layers' buckets."""
    wide = nn.Sequential(nn.Linear(5, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)).double()
    hub = Hub(2)

    def train(run: shoal.Run) -> list[tuple[int, int]]:
        model = run.model(copy.deepcopy(wide))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        seen = []

        def last_gradient(_gradient: torch.Tensor) -> None:
            step = run.step
            launched = [
                label for label in hub.labels[run.rank] if label.startswith(f"step {step},") and "gradients" in label
            ]
            deadline = time.monotonic() + 30
            while run._session.peers.traffic().bytes_sent == before and time.monotonic() < deadline:
                time.sleep(0.001)  # the communication thread gets its turn; backward waits in this hook
            seen.append((len(launched), run._session.peers.traffic().bytes_sent - before))

        model[0].weight.register_hook(last_gradient)
        for x, y in run.batches(data(), batch_size=4):
            loss = F.mse_loss(model(x), y)
            before = run._session.peers.traffic().bytes_sent
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return seen

    for seen in train_in_threads(2, train, hub=hub, bucket_mb=0.1):
        assert all(launched >= 1 and sent > 0 for launched, sent in seen)
