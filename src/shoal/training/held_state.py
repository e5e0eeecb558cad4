"""Which state this worker holds, for workers to compare: its step, and the generation that agreed on it. Pure.

Not here: the tensors (`state`), where the script is in program order (`script_place`), and the place in the data, which
is the loop's cursor.
"""

from __future__ import annotations

from shoal.wire.tables import Range


class HeldState:
    def __init__(self, generation: int) -> None:
        self.generation = generation  # that agreed on this state; 0: none
        self.step = 0  # applied steps so far, over all loops
        self.agreed_step = 0  # where workers run free: the updates that all knew of when they last met
        self.gaps: tuple[Range, ...] = ()  # positions before the loop's cursor that are still to be used
        self.compared = 0  # the last step before which all workers had the same parameters
        self.is_doubtful = False  # a collective failed and gave this worker's own value; others may have another
        self.stopped: str | None = None  # reason, once all workers have agreed to end their loops

    # Steps

    def apply(self, *, is_compared: bool) -> None:
        """A step was applied. `is_compared`: its exchange has shown that all workers had the same parameters before."""
        if is_compared:
            self.compared = self.step
        self.step += 1

    def apply_own(self, step: int) -> None:
        """An update of this worker's own was applied. `step`: its number among the updates of all workers."""
        self.step = max(self.step, step)

    def use_gap(self, position: int) -> None:
        """The first gap was used up to this position."""
        gap, *rest = self.gaps
        left = Range(gap.epoch, position, gap.stop)
        self.gaps = (left, *rest) if left.size else tuple(rest)

    def go_back(self, step: int, gaps: tuple[Range, ...]) -> None:
        """Go back to this step: all later ones are void."""
        self.step, self.gaps = step, gaps

    def take(self, step: int, gaps: tuple[Range, ...]) -> None:
        """This worker has the state that all agreed on: from another, from a checkpoint, or from servers."""
        self.step = self.agreed_step = step
        self.gaps = gaps

    # What other workers know of this state

    def know_step(self) -> None:
        """All workers know of the updates that this one knows of."""
        self.agreed_step = self.step

    def trust(self, step: int) -> None:
        """All workers had the same parameters before this step."""
        self.compared = step

    def agree(self, generation: int) -> None:
        """The members of this generation agree on the state."""
        self.generation = generation

    def lose(self) -> None:
        """No generation has agreed on the state that this worker has now."""
        self.generation = 0

    def doubt(self, *, is_doubtful: bool) -> None:
        self.is_doubtful = is_doubtful

    def stop(self, reason: str | None) -> None:
        """All workers have agreed to end their loops, where there is a reason; the first reason stays."""
        self.stopped = self.stopped or reason
