"""The properties of a strategy that the loop, the session and the coordinator have to know. Pure.

A strategy states its manners as one value; other modules ask that value and not the strategy's class. Not here: what an
exchange carries and how replicas agree (`strategies.strategy`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Manners:
    """Checkpoints, stops, hand-overs and newcomers are possible where all workers meet, and nowhere else.

    The steps between two meetings are the unit of commit: if a worker is lost, all steps since the last meeting are
    void and redone. If workers meet only when called, the unit is one worker's own update.
    """

    every: int | None = 1  # all workers meet in each step that is a multiple of this; None: when one of them calls
    updates_elsewhere: bool = False  # servers do the work of `optimizer.step()`, and keep it even if a worker is lost
    connects_workers: bool = True  # workers connect to each other, so that two may fail to reach each other

    @property
    def is_free(self) -> bool:
        """Workers meet when called: each commits updates of its own, and none waits for another."""
        return self.every is None

    @property
    def has_stretches(self) -> bool:
        """Replicas differ from one meeting to the next, and all steps between the two count together or not at all."""
        return self.every is not None and self.every > 1

    @property
    def progress_proves_life(self) -> bool:
        """A step takes all members, so that the steps of others prove a silent member alive."""
        return self.every == 1

    def meets_in(self, step: int) -> bool:
        """Whether all workers meet in the exchange of this step, counted from 1."""
        return self.every is not None and step % self.every == 0
