"""The batch that the script has at hand, from the moment it is yielded until the next one is asked for. Pure."""

from __future__ import annotations

from shoal.strategies.strategy import Iteration


class OpenBatch:
    def __init__(self) -> None:
        self.iteration: Iteration | None = None  # None between batches
        self.is_compared = False  # the exchange of its step compares the replicas
        self.was_left = False  # the loop was left in the middle, and is not settled yet
        self.was_applied = False  # whether the last iteration of a loop counted
        self._calls = 0  # collective calls of the script since the step began, in program order

    @property
    def is_between(self) -> bool:
        """The script is in no iteration; it may have left its last one by `break`."""
        return self.iteration is None or self.was_left

    @property
    def is_left_as_step(self) -> bool:
        """Whether the loop was left in an iteration that counts as a step and is not settled yet."""
        return self.was_left and self.iteration is not None and is_step(self.iteration)

    def begin(self, iteration: Iteration, *, is_compared: bool) -> None:
        self.iteration, self.is_compared = iteration, is_compared
        if iteration.is_first:
            self.forget_calls()  # calls are numbered within a step: a void one may have made more or fewer

    def end(self, iteration: Iteration) -> None:
        self.was_applied = iteration.may_update
        self.iteration = None

    def leave(self) -> None:
        """The script has left its loop inside an iteration, or ended there."""
        self.was_left = True

    def settle(self) -> None:
        """All workers have left the loop, or this iteration is given up."""
        self.was_left = False

    def drop(self) -> None:
        """The script has ended, with or without an error."""
        self.iteration = None

    def name_call(self, operation: str) -> str:
        """A name for a collective of the script, the same on every worker."""
        self._calls += 1
        return f"{operation}, call {self._calls}"

    def forget_calls(self) -> None:
        self._calls = 0


def is_step(iteration: Iteration) -> bool:
    """Whether an iteration that was left in the middle counts as a step."""
    return iteration.is_last and (iteration.exchanges > 0 or iteration.updates > 0)
