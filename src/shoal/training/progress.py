"""What faults cost, as this worker sees it: time without progress after a regrouping, work that was redone.

Also adds up what being ready for faults costs when there are none, by timers around each part.
"""

from __future__ import annotations

import time

from shoal.events import BatchChosen, ProgressResumed
from shoal.strategies.peers import Peers


class Progress:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._applied_at = time.perf_counter()  # when the last step was
        self._reason: str | None = None  # why the members regrouped, until a step was applied since
        self._speaks = False  # this worker is the one that tells of it
        self._redone = 0
        self._samples_redone = 0
        self._size = 0  # workers in the last generation
        self.costs: dict[str, float] = {}  # seconds by what they were spent on, since the script began

    def spent(self, what: str, seconds: float) -> None:
        self.costs[what] = self.costs.get(what, 0.0) + seconds

    def begins(self) -> None:
        """A loop begins: time before it is nobody's."""
        self._applied_at = time.perf_counter()

    def voided(self, samples: int) -> None:
        """A step will be done again."""
        self._redone += 1
        self._samples_redone += samples

    def regrouped(self, reason: str, *, speaks: bool) -> None:
        """`speaks`: this worker tells of it for all."""
        self._reason = self._reason or reason
        self._speaks = speaks

    def resized(self, *, global_batch: int, lr_factor: float, resize: str) -> None:
        """Tell what becomes of the batch where the number of workers is another than before."""
        generation = self._peers.generation
        is_new = self._size not in (0, generation.size)
        self._size = generation.size
        if not is_new or self._peers.group.rank != 0:
            return
        stays = {
            "global-batch": "the batch over all workers stays",
            "worker-batch": "the batch per worker stays, and so do learning rates",
            "worker-batch-and-lr": "the batch per worker stays, and learning rates follow the batch over all workers",
        }
        self._peers.report(
            BatchChosen(
                generation=generation.number,
                workers=generation.size,
                global_batch=global_batch,
                worker_batch=global_batch / generation.size,
                lr_factor=lr_factor,
                reason=f"{stays[resize]} (--resize {resize})",
            )
        )

    def applied(self, step: int) -> None:
        now = time.perf_counter()
        if self._reason is not None:
            if self._speaks:
                self._peers.report(
                    ProgressResumed(
                        generation=self._peers.generation.number,
                        step=step,
                        seconds=now - self._applied_at,
                        redone=self._redone,
                        samples_redone=self._samples_redone,
                        reason=self._reason,
                    )
                )
            self._reason = None
        self._redone = self._samples_redone = 0
        self._applied_at = now
