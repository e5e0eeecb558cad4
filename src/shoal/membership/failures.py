"""Counting failures of the script, and of processes that do not get as far as a generation. Pure.

One failure costs one worker; the same failure again and again is the script's, and ends the job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
KEPT = 4096  # characters of a failure by which another is known to be the same: a traceback's end tells most


def sameness(text: str) -> str:
    """What two failures share if they are the same: addresses, numbers of workers and samples may differ."""
    return _NUMBERS.sub("#", text)[-KEPT:]


class Failures:
    """Of one job."""

    def __init__(self, limit: int, counted: Iterable[str] = ()) -> None:
        """`counted` are the samenesses of failures before this coordinator."""
        self._limit = limit
        self._scripts = Counter(counted)
        self._starts = 0

    def script_failed(self, text: str) -> int:
        """How often the script has failed in this way."""
        same = sameness(text)
        self._scripts[same] += 1
        return self._scripts[same]

    def start_failed(self) -> int:
        """How many processes in a row have ended badly before they were in a generation."""
        self._starts += 1
        return self._starts

    def progressed(self) -> None:
        """A step was applied."""
        self._starts = 0

    def is_too_many(self, count: int) -> bool:
        return count >= self._limit
