"""What a worker tells about itself: logged values, samples and time shares, a few times a second at most.

Values logged in a void step are dropped. Tensors are read only when they are sent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import torch

from shoal.errors import UsageError
from shoal.events import StepsApplied
from shoal.strategies.peers import Peers
from shoal.values import TimeShares

INTERVAL = 0.25  # seconds between two reports


class Reporter:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._values: dict[str, Any] = {}  # last value of each name from applied steps
        self._open: dict[str, Any] = {}  # logged in the iteration that is not over yet
        self._value_samples = 0  # of the step that the last values are from
        self._samples = 0
        self._epoch = 0
        self._shares = TimeShares()
        self._sent_at = time.perf_counter()
        self._bytes_sent = 0
        self._unsent_steps = 0

    def log(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.numel() != 1:
                raise UsageError(f"run.log({name}=...) was given a tensor of shape {list(value.shape)}, not one number")
            if not isinstance(value, int | float | torch.Tensor):
                raise UsageError(f"run.log({name}=...) was given a {type(value).__name__}; it takes numbers")
            self._open[name] = value.detach() if isinstance(value, torch.Tensor) else value

    def keep_logged(self, *, samples: int) -> None:
        """What was logged counts: its step was applied, or it was logged outside a loop. Of a stand-in it does not."""
        if samples:
            self._values.update(self._open)
            self._value_samples = samples
        self._open = {}

    def drop_logged(self) -> None:
        self._open = {}

    def add(self, *, samples: int, shares: TimeShares, epoch: int | None = None) -> None:
        self._epoch = self._epoch if epoch is None else epoch
        self._samples += samples
        self._shares = self._shares.plus(shares)
        self._unsent_steps += 1

    def send(self, *, step: int, now: bool = False) -> None:
        """Report if it is time to, or if asked to now."""
        elapsed = time.perf_counter() - self._sent_at
        if not self._unsent_steps or (elapsed < INTERVAL and not now):
            return
        bytes_sent = self._peers.traffic().bytes_sent
        self._peers.report(
            StepsApplied(
                worker=self._peers.worker,
                generation=self._peers.generation.number,
                step=step,
                epoch=self._epoch,
                samples=self._samples,
                seconds=elapsed,
                shares=self._shares,
                bytes_sent=bytes_sent - self._bytes_sent,
                value_samples=self._value_samples,
                values={name: finite(float(value)) for name, value in self._values.items()},
            )
        )
        self._bytes_sent = bytes_sent
        self._samples = 0
        self._shares = TimeShares()
        self._sent_at = time.perf_counter()
        self._unsent_steps = 0

    def restart_clock(self) -> None:
        """A loop begins: time before it is nobody's."""
        self._sent_at = time.perf_counter()


def finite(value: float) -> float | None:
    """Events are JSON, which has no nan and no infinity."""
    return value if math.isfinite(value) else None
