"""What readiness for faults costs this worker while there are none, and what becomes of the batch after a fault.

Not here: what faults cost, which is told from the steps of all workers (`membership.record.standstills`).
"""

from __future__ import annotations

from shoal.events import BatchChosen
from shoal.strategies.peers.peers import Peers


class Progress:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._size = 0  # workers in the last generation
        self.costs: dict[str, float] = {}  # seconds by what they were spent on, since the script began

    def spent(self, what: str, seconds: float) -> None:
        self.costs[what] = self.costs.get(what, 0.0) + seconds

    def resized(self, *, global_batch: int, lr_factor: float, resize: str) -> None:
        """Report what becomes of the batch, where the number of workers has changed."""
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
