"""Counting failures of the script, and of processes that end before they are in a generation. Pure.

One failure costs one worker. The same failure again and again is a fault of the script and ends the job. Processes that
die at their start count in rounds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
KEPT = 4096  # characters of a failure that are compared: the end of a traceback tells most


def sameness(text: str) -> str:
    """The text of a failure without numbers and addresses, which differ between workers and samples."""
    return _NUMBERS.sub("#", text)[-KEPT:]


class Failures:
    """Of one job."""

    def __init__(self, limit: int, counted: Iterable[str] = ()) -> None:
        """`counted`: the `sameness` of each failure that an earlier coordinator counted."""
        self._limit = limit
        self._scripts = Counter(counted)
        self._rounds = 0
        self._repeats = 0  # times that the code behind a loop was run again
        self._repeated = -1  # the step after which it was
        self._newest = -1  # number of the newest process when a round was last counted

    def script_failed(self, text: str) -> int:
        """How often the script has failed in this way."""
        same = sameness(text)
        self._scripts[same] += 1
        return self._scripts[same]

    def start_failed(self, worker: int, *, newest: int) -> int:
        """How many rounds of processes in a row have ended badly before they were in a generation.

        A process that was already started when the last round was counted belongs to that round: one cause may hit all
        of them. `newest` is the highest number of any process.
        """
        if worker > self._newest:
            self._rounds += 1
            self._newest = newest
        return self._rounds

    def went_back(self, step: int) -> int:
        """How often in a row workers were lost in code behind a loop, after this step, so that all ran it again."""
        self._repeats = self._repeats + 1 if step <= self._repeated else 1
        self._repeated = max(step, self._repeated)
        return self._repeats

    def progressed(self) -> None:
        """A step was applied."""
        self._rounds = 0

    def is_too_many(self, count: int) -> bool:
        return count >= self._limit
