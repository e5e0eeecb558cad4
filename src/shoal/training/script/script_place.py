"""Where a worker's script is, in program order: loops and meetings that it has passed, and what it still goes through.

All that is counted here is counted alike on every worker, so that members can compare where they are, and a script that
runs from the top knows what the others have passed. Pure. Not here: applied steps and the place in the data.
"""

from __future__ import annotations

from typing import Any

from shoal.training.script.loop_end import LoopEnd
from shoal.training.script.past import Past


class ScriptPlace:
    def __init__(self) -> None:
        self.points = 0  # meetings of all workers outside loops that were passed
        self.loops = 0  # loops started so far
        self.in_loop = False  # the current loop's start was passed, and its end was not
        self.has_begun = False  # a loop's start was passed since the script last ran from the top
        self.loop_end: LoopEnd | None = None  # of the last loop that is over; None in loops and before the first
        self.results: list[Any] = []  # of collectives outside loops, for a script that starts again from the top
        self.past: Past | None = None  # set while a script that started again has not reached its current loop
        self.ended: tuple[int, str] | None = None  # the meeting before an epoch at which a stop ended epochs, and why
        self.is_through = False  # nothing of the script is left to run
        self.knows_rank = False  # the script has asked for its rank, or for the number of workers

    # Meetings outside loops

    def pass_meeting(self) -> None:
        self.points += 1

    def record(self, result: Any) -> None:
        """What a collective outside loops gave."""
        self.results.append(result)

    def ask_rank(self) -> None:
        self.knows_rank = True

    # Epochs

    def end_epochs(self, reason: str) -> None:
        """In the meeting before an epoch, which was passed, all workers have agreed to begin no further one."""
        self.ended = self.ended or (self.points, reason)

    @property
    def past_stop(self) -> str | None:
        """Why the others ended their epochs in the meeting that this script passes, or earlier; None: they did not.

        Those of a resumed job did not: its checkpoint is in a later loop, and no loop begins after a stop.
        """
        ended = None if self.past is None else self.past.ended
        return None if ended is None or self.points < ended[0] else ended[1]

    # Loops

    def enter_loop(self, number: int) -> None:
        """The start of the loop with this number was passed, or the script joins the others in it."""
        self.loops, self.loop_end = number, None
        self.in_loop = self.has_begun = True

    def skip_loop(self) -> None:
        """Go through a loop that is over for the others, or was over before the script started again."""
        self.loops += 1
        self.points += 2  # its start and its end

    def leave_loop(self) -> None:
        """The meeting at the loop's end was passed."""
        self.in_loop = False

    def stand_behind(self, end: LoopEnd | None) -> None:
        """The script's own code behind this loop comes next."""
        self.loop_end = end

    # A script that runs from the top

    def go_through(self, past: Past) -> None:
        """Everything up to the place of `past` is over for this script."""
        self.past = past

    def arrive(self, end: LoopEnd | None) -> None:
        """The script is where the others are. `end`: of the loop that they are behind."""
        self.past, self.loop_end = None, end
        self.has_begun = True

    def reach_checkpoint(self) -> None:
        """A resumed script has come to the loop that its checkpoint is in."""
        self.past = None

    def run_out(self) -> None:
        """Nothing of the script comes after `train`, which has returned."""
        self.is_through = True

    def come_to_end(self, points: int) -> None:
        """The script has come to its last line; members may have passed more meetings, for the last checkpoint."""
        self.points = max(self.points, points)
