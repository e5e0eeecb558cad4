"""Copies between a GPU and host memory that go on while this thread does something else.

Down (to the host) and up are two queues: CUDA streams of our own, so that both directions are busy at once and the
caller's stream is not held up. A mark is a place in a queue that the host, or the other queue, can wait for. Not here:
what is copied in which order (`ferry`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from shoal.collectives.gpu.pinned_memory import pool
from shoal.errors import UsageError

Mark = Any  # of the copies that made it


class Copies(ABC):
    """The two queues. Used by one thread at a time."""

    @abstractmethod
    def memory(self, size: int) -> torch.Tensor:
        """So many bytes of the host, with any values. They are free when the tensor is gone."""

    @abstractmethod
    def down(self, target: torch.Tensor, sources: Sequence[torch.Tensor], after: Mark | None) -> Mark:
        """Copy flat tensors of the GPU, one after the other, into one of the host, once `after` is reached."""

    @abstractmethod
    def up(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> Mark:
        """Copy one flat tensor of the host into several of the GPU."""

    @abstractmethod
    def wait(self, mark: Mark) -> None:
        """Until that place in its queue is reached."""


@dataclass(frozen=True)
class Moment:
    """What a stream of a GPU had been given to do when somebody called."""

    device: torch.device
    event: torch.cuda.Event


def moment_of(tensors: Sequence[torch.Tensor], label: str) -> Moment | None:
    """Now, in the caller's thread and on its stream. None: the tensors are not on a GPU."""
    if not any(tensor.is_cuda for tensor in tensors):
        return None
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise UsageError(f"{label!r}: the tensors of one call are on {names}; they should be on one device")
    if torch.cuda.is_current_stream_capturing():
        raise UsageError(f"{label!r}: collectives cannot be captured in a CUDA graph; call them outside of the capture")
    (device,) = devices
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return Moment(device, event)


class GpuCopies(Copies):
    """Two streams of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._down = torch.cuda.Stream(device)
        self._up = torch.cuda.Stream(device)

    @contextmanager
    def entered(self, moment: Moment) -> Iterator[None]:
        """Inside, this thread works on a stream of ours, after that moment. At the end nothing is under way."""
        with torch.cuda.stream(self._down):
            try:
                self._down.wait_event(moment.event)
                yield
            finally:
                # Whatever happened: nothing of ours may touch memory that its owner is about to use again.
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
def copies_after(moment: Moment) -> Iterator[GpuCopies]:
    """Copies of that GPU that nobody else uses meanwhile."""
    idle = _idle[moment.device]
    try:
        copies = idle.pop()
    except IndexError:
        copies = GpuCopies(moment.device)
    with copies.entered(moment):
        yield copies
    idle.append(copies)
