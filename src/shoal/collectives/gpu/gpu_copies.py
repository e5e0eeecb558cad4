"""Copies between a GPU and host memory that go on while this thread does something else.

Down (to the host) and up are two queues. Each is a CUDA stream of our own, so that both directions are busy at once and
the caller's stream is not held up. A mark is a place in a queue that the host, or the other queue, can wait for. Not
here: what is copied in which order (`ferry`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from shoal.collectives import texts
from shoal.collectives.gpu.pinned_memory import pool
from shoal.errors import UsageError

Mark = Any  # valid for the `Copies` that made it


class Copies(ABC):
    """The two queues. Used by one thread at a time."""

    @abstractmethod
    def memory(self, size: int) -> torch.Tensor:
        """`size` bytes of host memory, uninitialized. They are free when the tensor is gone."""

    @abstractmethod
    def down(self, target: torch.Tensor, sources: Sequence[torch.Tensor], after: Mark | None) -> Mark:
        """Copy flat GPU tensors, one behind the other, into one host tensor, once `after` is reached."""

    @abstractmethod
    def up(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> Mark:
        """Copy one flat host tensor into several GPU tensors."""

    @abstractmethod
    def wait(self, mark: Mark) -> None:
        """Block until the mark is reached."""


@dataclass(frozen=True)
class StreamPoint:
    """The point in a GPU stream at which a caller started an operation: everything before it must be done first."""

    device: torch.device
    event: torch.cuda.Event


def moment_of(tensors: Sequence[torch.Tensor], label: str) -> StreamPoint | None:
    """The present moment of the caller's stream. None: the tensors are not on a GPU."""
    if not any(tensor.is_cuda for tensor in tensors):
        return None
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise UsageError(texts.several_devices(label, names))
    if torch.cuda.is_current_stream_capturing():
        raise UsageError(texts.in_cuda_graph(label))
    (device,) = devices
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return StreamPoint(device, event)


class GpuCopies(Copies):
    """Two streams of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._down = torch.cuda.Stream(device)
        self._up = torch.cuda.Stream(device)

    @contextmanager
    def entered(self, moment: StreamPoint) -> Iterator[None]:
        """Inside, this thread works on a stream of ours, after `moment`. At the end no copy is under way."""
        with torch.cuda.stream(self._down):
            try:
                self._down.wait_event(moment.event)
                yield
            finally:
                # Even after an error, no copy of ours may touch memory that its owner is about to use again.
                self._up.synchronize()
                self._down.synchronize()

    def memory(self, size: int) -> torch.Tensor:
        return pool.take(size)

    def down(self, target: torch.Tensor, sources: Sequence[torch.Tensor], after: Mark | None) -> Mark:
        if after is not None:
            self._down.wait_event(after)
        if len(target):
            # One copy for all: many small ones would cost more in calls than in bytes.
            source = sources[0] if len(sources) == 1 else torch.cat(list(sources))
            target.copy_(source, non_blocking=True)
        return self._down.record_event()

    def up(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> Mark:
        with torch.cuda.stream(self._up):
            if len(targets) == 1:
                targets[0].copy_(source, non_blocking=True)
            elif len(source):
                whole = torch.empty(len(source), dtype=source.dtype, device=targets[0].device)
                whole.copy_(source, non_blocking=True)
                parts = zip(targets, whole.split([len(target) for target in targets]), strict=True)
                filled, found = zip(*((target, part) for target, part in parts if len(target)), strict=True)
                torch._foreach_copy_(filled, found)
            return self._up.record_event()

    def wait(self, mark: Mark) -> None:
        mark.synchronize()


_idle: dict[torch.device, list[GpuCopies]] = defaultdict(list)


@contextmanager
def copies_after(moment: StreamPoint) -> Iterator[GpuCopies]:
    """Copies for that GPU that no other thread uses meanwhile."""
    idle = _idle[moment.device]
    try:
        copies = idle.pop()
    except IndexError:
        copies = GpuCopies(moment.device)
    with copies.entered(moment):
        yield copies
    idle.append(copies)
