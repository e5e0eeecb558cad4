"""What a strategy is like, as far as the loop, the session and the coordinator have to know. Pure.

A strategy states its manners as one value, and everybody else asks that value instead of the strategy's class. Not
here: what an exchange carries and how replicas agree, which is the strategy's own business (`strategies.strategy`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Manners:
    """A checkpoint, a stop, a hand-over and a newcomer come in where all workers meet, and nowhere else.

    What lies between two meetings is the unit of commit: where a worker is lost meanwhile, all steps since the last
    meeting are void, and done again. Where workers meet when called, the unit is one worker's own update.
    """

    every: int | None = 1  # all workers meet in each step that is a multiple of it; None: when one of them calls
    updates_elsewhere: bool = False  # servers do what `optimizer.step()` is to do, and keep it, whoever asked them
    connects_workers: bool = True  # workers open connections to each other, and two may fail to reach each other

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
