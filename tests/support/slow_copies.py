"""Copies that are done as late as they may be, or at any moment before: what two CUDA streams may do, without a GPU."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from shoal.collectives.gpu.gpu_copies import Copies, Mark


@dataclass(frozen=True)
class Job:
    after: tuple[str, int] | None  # a mark
    work: Callable[[], None]


class SlowCopies(Copies):
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._queues: dict[str, list[Job]] = {"down": [], "up": []}
        self._done = {"down": 0, "up": 0}
        self.most_under_way = 0  # copies that were queued and not done, at any moment

    @property
    def under_way(self) -> int:
        return sum(len(queue) for queue in self._queues.values()) - sum(self._done.values())

    def memory(self, size: int) -> torch.Tensor:
        return torch.randint(0, 255, (size,), dtype=torch.uint8)

    def down(self, target: torch.Tensor, sources: Sequence[torch.Tensor], after: Mark | None) -> Mark:
        def copy() -> None:
            if len(target):
                target.copy_(torch.cat(list(sources)))

        return self._put("down", Job(after, copy))

    def up(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> Mark:
        def copy() -> None:
            for target, part in zip(targets, source.split([len(each) for each in targets]), strict=True):
                target.copy_(part)

        return self._put("up", Job(None, copy))

    def wait(self, mark: Mark) -> None:
        name, number = mark
        while self._done[name] < number:
            self._step(name)

    def _put(self, name: str, job: Job) -> Mark:
        self._queues[name].append(job)
        self.most_under_way = max(self.most_under_way, self.under_way)
        for _ in range(self._random.randrange(3)):
            self._move_on(self._random.choice(("down", "up")))
        return name, len(self._queues[name])

    def _move_on(self, name: str) -> None:
        """The next job of a queue, if there is one that may run."""
        if self._done[name] < len(self._queues[name]):
            after = self._queues[name][self._done[name]].after
            if after is None or self._done[after[0]] >= after[1]:
                self._step(name)

    def _step(self, name: str) -> None:
        job = self._queues[name][self._done[name]]
        if job.after is not None:
            self.wait(job.after)
        job.work()
        self._done[name] += 1
