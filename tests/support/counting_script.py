"""A script for elastic jobs: parameter i counts the uses of sample i, and traps kill workers where it hurts.

`--traps` is JSON: by worker number, a place and a step. Places: forward, backward, update (inside `optimizer.step`),
compare and connect (while regrouping), copy (of the state, sent or received), part (of a checkpoint), script (in the
script's own code); `hang`, `raise` and `memory` (more than there is) do that in place of dying. From the step `--gate`
on, workers wait for the file `open`. The first worker writes what came of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.checkpoint.parts import part_thread
from shoal.training.recovery import regrouping


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(10)


class Uses(nn.Module):
    def __init__(self, samples: int, spring: Callable[[str], None]) -> None:
        super().__init__()
        self.uses = nn.Parameter(torch.zeros(samples, dtype=torch.float64))
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(64, 64)) for _ in range(4))
        self.spring = spring

    def forward(self, index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self.spring("forward")
        for weight in self.weights:
            x = torch.tanh(x @ weight / 64)
        if x.requires_grad:
            x.register_hook(lambda _: self.spring("backward"))
        return x.pow(2).mean() - self.uses[index].sum() / len(index)


class Counting(torch.optim.SGD):
    spring: Callable[[str], None]

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None:
                    half = len(parameter) // 2
                    parameter[:half] -= self.param_groups[0]["lr"] * parameter.grad[:half]
                    self.spring("update")
                    parameter[half:] -= self.param_groups[0]["lr"] * parameter.grad[half:]
        return closure() if closure is not None else None


class Traps:
    def __init__(self, run: shoal.Run, traps: dict[str, list[Any]]) -> None:
        self._run = run
        self._place, self._step = traps.get(str(run._session.peers.worker), ["", 0])
        if self._place in ("compare", "copy"):
            name = {"compare": "_compare", "copy": "copy_state"}[self._place]
            setattr(regrouping, name, self._wrapped(getattr(regrouping, name)))
        if self._place == "connect":
            peers: Any = run._session.peers
            peers.connect = self._wrapped(peers.connect)
        if self._place == "part":
            part_thread.write_part = self._wrapped(part_thread.write_part)

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def trapped(*arguments: Any, **named: Any) -> Any:
            self.spring(self._place)
            return function(*arguments, **named)

        return trapped

    def spring(self, place: str) -> None:
        if place == self._place and self._run.step >= self._step:
            die()

    def in_script(self) -> None:
        """Called between forward and the rest."""
        self.spring("script")
        if self._run.step >= self._step:
            if self._place == "hang":
                self._place = ""
                time.sleep(8)
            if self._place == "memory":
                torch.empty(2**62, dtype=torch.uint8)
            if self._place == "raise":
                raise RuntimeError("the script's own mistake")


def train(run: shoal.Run) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=403)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--gate", type=int, default=0)
    parser.add_argument("--traps", type=json.loads, default={})
    options = parser.parse_args()
    traps = Traps(run, options.traps)
    model = run.model(Uses(options.samples, traps.spring))
    counting = Counting([model.uses], lr=1.0)
    counting.spring = traps.spring
    counting = run.optimizer(counting)
    training = run.optimizer(torch.optim.AdamW(model.weights.parameters(), lr=0.01))
    x = torch.randn(options.samples, 64, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(torch.arange(options.samples), x)
    for epoch in run.epochs(options.epochs):
        for index, rows in epoch.batches(data, batch_size=3):
            loss = model(index, rows)
            traps.in_script()
            loss.backward()
            model.uses.grad.mul_(run._session.iteration.step_samples)  # type: ignore[union-attr]  # there is one in a loop
            counting.step()
            training.step()
            counting.zero_grad()
            training.zero_grad()
            time.sleep(options.pause)
            while options.gate and run.step >= options.gate and not Path("open").exists():
                time.sleep(0.01)
        mean = run.mean(1.0)
        assert mean == 1.0
    if run.is_first:
        off = (model.uses.detach() - options.epochs).abs().max().item()
        found = {"off": off, "steps": run.step, "size": run.world_size, "pid": os.getpid()}
        Path("result.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    shoal.main(train)
